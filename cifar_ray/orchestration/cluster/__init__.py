"""Ray itself: joining or starting it, its nodes, and its private parts."""

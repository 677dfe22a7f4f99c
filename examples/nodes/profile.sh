# What a shell on a node of the cluster finds set; the setup commands of the cluster files put it into ~/.bashrc.
export PATH="$HOME/cifar_ray_env/bin:$PATH"
export RAY_AUTH_MODE=token
export MLFLOW_TRACKING_URI=http://127.0.0.1:5000
export CIFAR_RAY_DATA_DIR="$HOME/data"

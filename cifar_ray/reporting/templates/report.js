"use strict";

// A column with any number is sorted by its numbers, others by their words; empty cells come last.
function sortBy(heading) {
  const table = heading.closest("table");
  const downwards = heading.getAttribute("aria-sort") === "ascending";
  const keyed = Array.from(table.tBodies[0].rows, (row) => {
    const cell = row.cells[heading.cellIndex];
    return { row, key: cell.dataset.value ?? (cell.querySelector(".text") || cell).textContent.trim() };
  });
  keyed.sort((one, other) => {
    if (one.key === "" || other.key === "") {
      return (one.key === "") - (other.key === "");
    }
    const order = one.key - other.key || one.key.localeCompare(other.key, "en", { numeric: true });
    return downwards ? -order : order;
  });
  table.tBodies[0].append(...keyed.map((item) => item.row));
  table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", downwards ? "descending" : "ascending");
}

document.querySelectorAll("button.sort").forEach((button) => {
  button.addEventListener("click", () => sortBy(button.closest("th")));
});

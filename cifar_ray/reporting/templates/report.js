"use strict";

// Sorting: a column with any number is sorted by its numbers, others by their words; empty cells come last.
function keyOf(cell, numeric) {
  if (numeric) {
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  }
  const words = (cell.querySelector(".text, code") || cell).textContent.trim();
  return words === "" ? null : words;
}

function sortBy(heading) {
  const table = heading.closest("table");
  const body = table.tBodies[0];
  const column = heading.cellIndex;
  const rows = Array.from(body.rows);
  const numeric = rows.some((row) => row.cells[column].dataset.value !== undefined);
  const downwards = heading.getAttribute("aria-sort") === "ascending";
  const keyed = rows.map((row) => ({ row, key: keyOf(row.cells[column], numeric) }));
  keyed.sort((one, other) => {
    if (one.key === null || other.key === null) {
      return (one.key === null) - (other.key === null);
    }
    const order = numeric ? one.key - other.key : one.key.localeCompare(other.key, "en", { numeric: true });
    return downwards ? -order : order;
  });
  body.append(...keyed.map((item) => item.row));
  table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", downwards ? "descending" : "ascending");
}

document.querySelectorAll("button.sort").forEach((button) => {
  button.addEventListener("click", () => sortBy(button.closest("th")));
});

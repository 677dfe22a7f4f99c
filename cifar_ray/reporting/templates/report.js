"use strict";

const said = document.getElementById("said");

// Sorting: a column with any number is sorted by its numbers, others by their words; empty cells come last.
function keyOf(cell, numeric) {
  if (numeric) {
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  }
  const words = (cell.querySelector(".text, code, button") || cell).textContent.trim();
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

// A browser may refuse the clipboard, for example in a frame; then the command is marked for copying by hand.
function copy(button) {
  const code = button.parentElement.querySelector("code");
  const done = (word) => {
    button.textContent = word;
    said.textContent = word;
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  };
  const mark = () => {
    getSelection().selectAllChildren(code);
    done("marked");
  };
  if (navigator.clipboard) {
    navigator.clipboard.writeText(code.textContent).then(() => done("copied"), mark);
  } else {
    mark();
  }
}

document.querySelectorAll("button.copy").forEach((button) => {
  button.addEventListener("click", () => copy(button));
});

// The page follows the system's theme until the button is used.
const theme = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === undefined ? system.matches : chosen === "dark";
}

function nameTheme() {
  theme.textContent = isDark() ? "light page" : "dark page";
}

theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
system.addEventListener("change", nameTheme);
nameTheme();
theme.hidden = false;

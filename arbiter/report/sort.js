// A click on a column's title sorts the table by it, a second one the other way round.
for (const table of document.querySelectorAll(".sortable table")) {
  const body = table.tBodies[0];
  const value = (row, column) => {
    const span = row.cells[column].querySelector("[data-sort]");
    return span ? span.dataset.sort : row.cells[column].textContent;
  };
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y;
  };
  [...table.tHead.rows[0].cells].forEach((title, column) => {
    const button = document.createElement("button");
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const way = title.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
      const rows = [...body.rows].sort((r, s) => {
        const [a, b] = [value(r, column), value(s, column)];
        if (a === "" || b === "") return (a === "") - (b === ""); // what is missing stays last
        return way * compare(a, b);
      });
      body.append(...rows);
    });
  });
}

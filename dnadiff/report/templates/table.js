"use strict";
// Tables: sorting by their heads, filtering if they are long. Charts: Vega-Embed, if it is there.
const value = cell => {
  const text = cell.textContent.trim(), number = parseFloat(text.replace(/,/g, "").replace("−", "-"));
  return text === "—" || text === "" ? null : Number.isNaN(number) ? text : number;
};
const compare = (a, b) => a === null || b === null ? (a === null) - (b === null)
  : typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, {numeric: true});
for (const table of document.querySelectorAll("table.rows")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falls = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falls < 0 ? "descending" : "ascending");
      const rows = [...body.rows].map(row => [value(row.cells[column]), row]);
      rows.sort(([a], [b]) => a === null || b === null ? compare(a, b) : falls * compare(a, b));
      body.append(...rows.map(([, row]) => row));
    });
  });
  if (body.rows.length > 12) {
    const input = document.createElement("input"), count = document.createElement("output");
    input.type = "search"; input.placeholder = "Filter rows"; input.setAttribute("aria-label", "Filter rows of the table");
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      const left = [...body.rows].filter(row => !row.hidden).length;
      count.textContent = wanted ? `${left} of ${body.rows.length} rows` : "";
    });
    const bar = document.createElement("div");
    bar.className = "filter"; bar.append(input, count);
    table.parentElement.before(bar);
  }
}
for (const chart of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(chart.querySelector("script").textContent), place = document.createElement("div");
  chart.replaceChildren(place);
  vegaEmbed(place, spec, {renderer: "svg", actions: {export: true, source: false, compiled: false, editor: false}, tooltip: {theme: "custom"}})
    .catch(error => { place.textContent = `The chart could not be drawn: ${error.message}`; });
}

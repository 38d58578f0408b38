/* The page of a study: a table that sorts, and the losses of the encodings that are chosen. */

const STYLES = 6;

for (const button of document.querySelectorAll("button.sort")) button.addEventListener("click", () => sortBy(button));

function sortBy(button) {
  const head = button.closest("th"), body = document.querySelector("#table tbody");
  const falling = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.classList.contains("number"));
  for (const other of document.querySelectorAll("#table thead th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const at = Number(button.dataset.column), sign = falling ? -1 : 1;
  const key = (row) => row.cells[at].dataset.sort;
  const rows = [...body.rows].sort((one, two) => {
    const a = key(one), b = key(two);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // rows without a result are last
    return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : Number(a) - Number(b));
  });
  body.append(...rows);
}

const chart = document.getElementById("loss-chart");
if (chart) {
  const losses = readJson("loss-data").filter((one) => one.kind === "loss" && one.x.length);
  const boxes = [...document.querySelectorAll("input.drawn")];
  const show = () => {
    const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
    const series = losses.filter((one) => chosen.includes(one.name)).map((one, number) => ({
      name: one.name, x: one.x, y: one.y, style: 1 + (number % STYLES), kind: "line",
    }));
    if (series.length) drawChart(chart, { label: "Training loss by step", xLabel: "step", yLabel: "loss", xName: "step", series });
    chart.hidden = !series.length;
  };
  for (const box of boxes) box.addEventListener("change", show);
  show();
}
document.body.dataset.ready = "true";

// Tables: results with the best in bold, tests between methods, how clients are served, and the runs themselves.
function table(kind, columns, rows, entryOf) {
  const used = columns.filter((column) => !column.there || rows.some(column.there));
  return el("div", {class: "scroll", "data-table": kind}, el("table", null,
    el("thead", null, el("tr", null, used.map((column) => el("th", {scope: "col", class: column.word && "word"}, column.head)))),
    el("tbody", null, rows.map((row, index) => el("tr", {"data-label": entryOf ? entryOf(row).label : null},
      used.map((column) => el("td", {class: column.word && "word"}, column.cell(row, index))))))));
}
const strong = (text, when) => when ? el("b", null, text) : text;
function methodCell(entry) {
  const button = el("button", {type: "button", title: "switch on or off"}, stroke(entry), el("span", null, entry.label));
  button.addEventListener("click", () => toggle(entry.label));
  return button;
}

const aimed = (target, metric) => number((metric.percent ? 100 : 1) * target) + (metric.unit ? " " + metric.unit : "");

function results(group) {
  const metric = group.metric, unit = metric.unit ? ` (${metric.unit})` : "";
  const means = group.entries.map((entry) => entry.final.mean).filter(known);
  const best = means.length ? means.reduce((a, b) => metric.higher_is_better === (a > b) ? a : b) : null;
  const each = (entry) => entry.final.seeds.map(([seed, value]) => `seed ${seed}: ${score(value, metric)}`).join("\n");
  const note = ["Mean ± standard deviation over seeds on the test set, after the last round. ",
    group.targets.length ? "Rounds to a target are means over the seeds that reached it, whose share stands beside where not all did; " +
      "best is who reached it in the largest share of seeds, then soonest. " : "",
    "Bytes are those of one seed's whole run."];
  return [table("results", [
    {head: "method", word: true, cell: methodCell},
    {head: metric.name + unit, cell: (entry) => el("span", {title: each(entry)},
      strong(entry.final.shown, known(entry.final.mean) && entry.final.mean === best))},
    {head: "best" + unit, cell: (entry) => score(entry.best, metric, false)},
    {head: "own" + unit, there: (entry) => known(entry.own), cell: (entry) => score(entry.own, metric, false)},
    ...group.targets.map((target, index) => ({head: `rounds to ${aimed(target, metric)}`,
      cell: (entry, row) => strong(entry.reached[index].shown, group.first[index][row])})),
    {head: "sent", cell: (entry) => bytes(entry.bytes[0])},
    {head: "received", cell: (entry) => bytes(entry.bytes[1])},
    {head: "samples/s", there: (entry) => known(entry.rate), cell: (entry) => known(entry.rate)
      ? bytes(entry.rate).replace(/B$/, "").trim() : "–"},
    {head: "seeds", cell: (entry) => String(entry.seeds.length)},
    {head: "rounds", cell: (entry) => entry.rounds + (entry.finished ? "" : " so far")},
  ], group.entries, (entry) => entry), el("p", {class: "note"}, note)];
}

function shownP(p) { return !known(p) ? "–" : p < 0.001 ? "< 0.001" : p.toFixed(3); }
function significance(group) {
  const told = group.significance;
  if (!told) return null;
  const metric = group.metric, place = el("div"), references = Object.keys(told.against);
  const draw = (reference) => {
    const rows = group.entries.map((entry, index) => ({entry, one: told.against[reference][index]})).filter((row) => row.one);
    place.replaceChildren(table("significance", [
      {head: "method", word: true, cell: (row) => methodCell(row.entry)},
      {head: `difference from ${group.entries[reference].label}${metric.percent ? " (points)" : ""}`, cell: (row) => (row.one.difference > 0 ? "+" : "") +
        score(row.one.difference, metric, false)},
      {head: "p", cell: (row) => strong(shownP(row.one.p), known(row.one.p) && row.one.p < 0.05)},
      {head: "p (Holm)", cell: (row) => strong(shownP(row.one.holm), known(row.one.holm) && row.one.holm < 0.05)},
      {head: "seeds", cell: (row) => String(row.one.seeds)},
      {head: "test", word: true, cell: (row) => row.one.test || "none: " + row.one.why},
    ], rows, (row) => row.entry));
    shade();
  };
  const pick = choice("compared with", references.map((index) => [index, group.entries[index].label]), draw, String(told.best));
  draw(String(told.best));
  return [el("h3", null, "Significance"), references.length > 1 ? pick : null, place, el("p", {class: "note"},
    "Final scores; two-sided tests, paired over the seeds that both have, else Welch's; none from fewer than three seeds. " +
    "Holm corrects for all comparisons with one method; p < 0.05 is bold. ", told.variance[0].toUpperCase() + told.variance.slice(1), ".")];
}

function served(group) {
  const metric = group.metric, rows = group.entries.filter((entry) => entry.clients);
  if (!rows.length) return null;
  return [el("h3", null, "How clients are served"), table("served", [
    {head: "method", word: true, cell: methodCell},
    {head: "mean over clients", cell: (entry) => score(entry.clients.mean, metric)},
    {head: "worst client", cell: (entry) => score(entry.clients.worst, metric) + (entry.clients.who ? ` (${entry.clients.who})` : "")},
    {head: "tenth percentile", cell: (entry) => score(entry.clients.tenth, metric)},
    {head: "std over clients", cell: (entry) => spreadOf(entry.clients.std, metric)},
    {head: "taken on rows", word: true, cell: (entry) => entry.clients.rows},
  ], rows, (entry) => entry)];
}

function differences(group) {
  const keys = Object.entries(group.differences);
  if (!keys.length) return null;
  const runs = Object.keys(keys[0][1]), shown = (value) => typeof value === "string" ? value : JSON.stringify(value);
  return [el("h3", null, "In what these runs differ"), table("differences", [
    {head: "key", word: true, cell: ([key]) => el("code", null, key)},
    ...runs.map((run) => ({head: run, word: true, cell: ([, values]) => shown(values[run])})),
  ], keys)];
}

function about(run) {
  const facts = [["state", run.state], ["digest", run.digest ? el("code", null, run.digest) : "none until the run has ended"],
    ...Object.entries(run.environment).map(([key, value]) => [key, String(value)]),
    known(run.written) ? ["written", new Date(1000 * run.written).toISOString().slice(0, 16).replace("T", " ") + " UTC"] : null];
  const open = el("details", null, el("summary", null, "Configuration"), el("pre", {tabindex: 0}, run.config));
  return el("section", {"data-run": run.name}, el("h2", null, run.name, el("span", {class: "pill " + (run.finished ? "" : "unfinished")},
    run.state)), run.note ? el("p", null, run.note) : null,
  el("dl", null, facts.filter(Boolean).flatMap(([key, value]) => [el("dt", null, key), el("dd", null, value)])), open,
  el("p", {class: "note"}, "Save the configuration as a file and run it again with ", el("code", null, "consilience run FILE"),
    "; on the same machine, with the same versions, the digest is the same."));
}

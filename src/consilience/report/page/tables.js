// Tables: results with the best in bold, tests between methods, how clients are served, and the runs themselves.
// A column has a head and its cells, and `by` where rows can be put in its order: what is not known comes last.
function table(kind, columns, rows, entryOf) {
  const used = columns.filter((column) => !column.there || rows.some(column.there));
  const order = rows.map((row, index) => [row, index]), body = el("tbody");
  const show = () => {
    body.replaceChildren(...order.map(([row, index]) => {
      const label = entryOf ? entryOf(row).label : null;
      return el("tr", {"data-label": label, class: hidden.has(label) && "off"},
        used.map((column) => el("td", {class: column.word && "word"}, column.cell(row, index))));
    }));
  };
  const heads = used.map((column) => {
    const head = el("th", {scope: "col", class: column.word && "word"});
    if (!column.by) return fill(head, null, [column.head]);
    const button = el("button", {type: "button", title: "put in this order"}, column.head);
    button.addEventListener("click", () => {
      const was = head.getAttribute("aria-sort"), down = was ? was === "ascending" : !column.word;
      const there = (value) => value !== null && value !== undefined;
      const compare = (a, b) => there(a) && there(b) ? (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1) : there(b) - there(a);
      order.sort((a, b) => compare(column.by(...a), column.by(...b)) || a[1] - b[1]);
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      show();
    });
    return fill(head, null, [button]);
  });
  show();
  return el("div", {class: "scroll", "data-table": kind, tabindex: 0, role: "region", "aria-label": kind},
    el("table", null, el("thead", null, el("tr", null, heads)), body));
}
const strong = (text, when) => when ? el("b", null, text) : text;
function methodCell(entry) {
  const button = el("button", {type: "button", title: "switch on or off", "data-label": entry.label,
    "aria-pressed": String(isShown(entry))}, stroke(entry), el("span", null, entry.label));
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
    group.entries.every((entry) => entry.finished) ? "" : "What is not finished has the scores so far. ",
    group.targets.length ? "Rounds to a target are means over the seeds that reached it, whose share stands beside where not all did; " +
      "best is who reached it in the largest share of seeds, then soonest. " : "",
    "Bytes are those of one seed's whole run."];
  return [table("results", [
    {head: "method", word: true, by: (entry) => entry.label, cell: methodCell},
    {head: metric.name + unit, by: (entry) => entry.final.mean, cell: (entry) => el("span", {title: each(entry)},
      strong(entry.final.shown, known(entry.final.mean) && entry.final.mean === best))},
    {head: "best" + unit, by: (entry) => entry.best, cell: (entry) => score(entry.best, metric, false)},
    {head: "own" + unit, there: (entry) => known(entry.own), by: (entry) => entry.own, cell: (entry) => score(entry.own, metric, false)},
    ...group.targets.map((target, index) => ({head: `rounds to ${aimed(target, metric)}`, by: (entry) => entry.reached[index].mean,
      cell: (entry, row) => strong(entry.reached[index].shown, group.first[index][row])})),
    {head: "sent", by: (entry) => entry.bytes[0], cell: (entry) => bytes(entry.bytes[0])},
    {head: "received", by: (entry) => entry.bytes[1], cell: (entry) => bytes(entry.bytes[1])},
    {head: "samples/s", there: (entry) => known(entry.rate), by: (entry) => entry.rate, cell: (entry) => known(entry.rate)
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
      {head: "method", word: true, by: (row) => row.entry.label, cell: (row) => methodCell(row.entry)},
      {head: `difference from ${group.entries[reference].label}${metric.percent ? " (points)" : ""}`,
        by: (row) => row.one.difference, cell: (row) => (row.one.difference > 0 ? "+" : "") +
        score(row.one.difference, metric, false)},
      {head: "p", by: (row) => row.one.p, cell: (row) => strong(shownP(row.one.p), known(row.one.p) && row.one.p < 0.05)},
      {head: "p (Holm)", by: (row) => row.one.holm, cell: (row) => strong(shownP(row.one.holm), known(row.one.holm) && row.one.holm < 0.05)},
      {head: "seeds", cell: (row) => String(row.one.seeds)},
      {head: "test", word: true, cell: (row) => row.one.test || "none: " + row.one.why},
    ], rows, (row) => row.entry));
  };
  const pick = choice("compared with", references.map((index) => [index, group.entries[index].label]), draw, String(told.best));
  draw(String(told.best));
  return [el("h3", null, "Significance"), references.length > 1 ? pick : null, place, el("p", {class: "note"},
    "Final scores; two-sided tests, paired over the seeds that both have, else Welch's; none from fewer than three seeds. " +
    "Holm corrects for all comparisons with one method; p < 0.05 is bold. A method that is chosen as the best by these scores " +
    "looks a little better than it is. ", told.variance[0].toUpperCase() + told.variance.slice(1), ".")];
}

function served(group) {
  const metric = group.metric, rows = group.entries.filter((entry) => entry.clients);
  if (!rows.length) return null;
  return [el("h3", null, "How clients are served"), table("served", [
    {head: "method", word: true, by: (entry) => entry.label, cell: methodCell},
    {head: "mean over clients", by: (entry) => entry.clients.mean, cell: (entry) => score(entry.clients.mean, metric)},
    {head: "worst client", by: (entry) => entry.clients.worst, cell: (entry) => score(entry.clients.worst, metric) + (entry.clients.who ? ` (${entry.clients.who})` : "")},
    {head: "tenth percentile", by: (entry) => entry.clients.tenth, cell: (entry) => score(entry.clients.tenth, metric)},
    {head: "std over clients", by: (entry) => entry.clients.std, cell: (entry) => spreadOf(entry.clients.std, metric)},
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

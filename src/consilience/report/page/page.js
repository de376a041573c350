// The page: a legend that switches methods everywhere at once, a section for each group, one for each run.
const data = JSON.parse(document.getElementById("data").textContent);
const entries = new Map(data.groups.flatMap((group) => group.entries.map((entry) => [entry.label, entry])));

function shade() {
  for (const row of document.querySelectorAll("tr[data-label]")) row.classList.toggle("off", hidden.has(row.dataset.label));
}
function redraw() {
  for (const plot of plots) plot.draw();
  for (const button of document.querySelectorAll("button[data-label]"))
    button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.label)));
  shade();
}
function toggle(label) {
  if (!hidden.delete(label)) hidden.add(label);
  redraw();
}

function legend() {
  const chips = data.labels.map((label) => {
    const chip = el("button", {type: "button", class: "chip", "data-label": label, "aria-pressed": "true",
      title: label.length > 24 ? label : null}, stroke(entries.get(label)), el("span", null, label));
    chip.addEventListener("click", () => toggle(label));
    return chip;
  });
  const all = (name, change) => {
    const button = el("button", {type: "button", class: "chip"}, name);
    button.addEventListener("click", () => { change(); redraw(); });
    return button;
  };
  const more = data.labels.length > 2 ? [all("all", () => hidden.clear()), all("none", () => data.labels.forEach((one) => hidden.add(one)))] : [];
  const place = document.getElementById("legend");
  place.classList.toggle("many", data.labels.length > 12);
  place.append(...chips, ...more);
}

function head() {
  const theme = el("button", {type: "button", class: "plain", id: "theme"}, "light or dark");
  theme.addEventListener("click", () => { dress(scheme() === "dark" ? "light" : "dark"); redraw(); });
  const count = many(data.runs.length, "run") + ", " + many(data.labels.length, "method") +
    (data.groups.length > 1 ? `, ${data.groups.length} settings` : "");
  document.getElementById("head").append(el("h1", null, data.title), el("span", {class: "soft"}, count), theme);
}

function groupSection(group) {
  const unfinished = group.entries.some((entry) => !entry.finished), hiddenOnes = group.entries.filter((entry) => !entry.shown);
  const seeds = new Set(group.entries.map((entry) => entry.seeds.length)), rounds = new Set(group.entries.map((entry) => entry.rounds));
  const range = (values, word) => values.size === 1 ? many([...values][0], word)
    : `${Math.min(...values)} to ${Math.max(...values)} ${word}s`;
  const facts = [`${group.runs.length === 1 ? "run" : "runs"} ${group.runs.join(", ")}`, range(rounds, "round"), range(seeds, "seed"),
    group.partition ? many(group.partition.clients, "client") : null].filter(Boolean).join(" · ");
  return el("section", {"data-group": group.title}, el("h2", null, group.title, unfinished
    ? el("span", {class: "pill unfinished"}, "unfinished") : null, el("span", {class: "soft"}, facts)),
  hiddenOnes.length ? el("p", {class: "note"}, `Of ${group.entries.length} methods and variants the best ` +
    `${group.entries.length - hiddenOnes.length} are drawn at first; the legend switches on the others.`) : null,
  el("div", {class: "figures"}, curves(group, "curves", "Learning curves", "round"),
    curves(group, "bytes", `${group.metric.name} against bytes`, "bytes")),
  el("h3", null, "Results"), results(group), significance(group), differences(group),
  el("div", {class: "figures"}, bubbles(group), curvatureMap(group), clientScores(group), nodeMap(group)), served(group));
}

for (const label of data.labels) {
  const shownSomewhere = data.groups.some((group) => group.entries.some((entry) => entry.label === label && entry.shown));
  if (!shownSomewhere) hidden.add(label);
}
head();
legend();
document.getElementById("main").replaceChildren(...data.groups.map(groupSection), ...data.runs.map(about));
redraw();
night.addEventListener("change", () => { dress(); redraw(); });

// Lines over something: means in bands, a hint at the pointer, linear and logarithmic axes.
const COLOURS = 7, DASHES = ["", "7 3", "2 2.5", "8 3 2 3"];
const plots = [];  // everything that is drawn anew when a method is switched, the width changes, or night falls
const hidden = new Set();

const styled = (entry) => "s" + entry.style % COLOURS;
const dash = (entry) => DASHES[entry.style % DASHES.length] || null;
const isShown = (entry) => !hidden.has(entry.label);
function stroke(entry) {
  return svg("svg", {class: "stroke " + styled(entry), viewBox: "0 0 22 8", "aria-hidden": "true"},
    svg("line", {x1: 0, x2: 22, y1: 4, y2: 4, "stroke-dasharray": dash(entry)}));
}

// A figure whose picture is made for the width that it has; `make(width)` gives the picture.
function figure(kind, title, controls, make, note, wide) {
  const place = el("div", {class: "picture"}), below = el("p", {class: "note"});
  const whole = el("figure", {"data-plot": kind, class: wide ? "wide" : null},
    el("figcaption", null, el("h3", null, title[0].toUpperCase() + title.slice(1)), controls), place, below);
  let width = 0;
  const plot = {draw() {
    width = place.clientWidth;
    if (!width) return;
    place.replaceChildren(make(width));
    below.textContent = typeof note === "function" ? note() : note || "";
  }};
  plots.push(plot);
  new ResizeObserver(() => { if (place.clientWidth !== width) plot.draw(); }).observe(place);
  return [whole, plot];
}

function choice(name, options, changed, chosen) {
  const select = el("select", {"aria-label": name}, options.map(([value, text]) =>
    el("option", {value, selected: value === chosen ? "" : null}, text)));
  select.addEventListener("change", () => changed(select.value));
  return el("label", null, name, select);
}
function tick(name, changed, on = false) {
  const box = el("input", {type: "checkbox"});
  box.checked = on;
  box.addEventListener("change", () => changed(box.checked));
  return el("label", null, box, name);
}

function scaleOf(low, high, from, to, log) {
  const f = log ? Math.log : (value) => value, [a, b] = [f(low), f(high)];
  return (value) => from + (to - from) * (b > a ? (f(value) - a) / (b - a) : 0.5);
}
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
    for (const step of [1, 2, 5]) found.push(step * 10 ** power);
  const inside = found.filter((one) => one >= low * 0.9999 && one <= high * 1.0001);
  if (inside.length < 2) return ticks(low, high, 4).filter((one) => one > 0);
  return inside.length <= 8 ? inside : inside.filter((one) => Number.isInteger(Math.round(Math.log10(one) * 1e6) / 1e6));
}
const number = (value) => String(Number(value.toPrecision(5)));

// spec: series of {entry, points of {x, y, spread, words}}; x and y {name, log, show, whole, bounds}; dots; targets.
function lines(width, spec) {
  const height = Math.round(Math.min(380, Math.max(250, width * 0.62)));
  const [top, right, bottom] = [10, 12, 40];
  const fits = (point) => known(point.y) && known(point.x) && (!spec.x.log || point.x > 0) && (!spec.y.log || point.y > 0);
  const series = spec.series.filter((one) => isShown(one.entry))
    .map((one) => ({...one, points: one.points.filter(fits)})).filter((one) => one.points.length);
  const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0,
    "aria-label": spec.label});
  if (!series.length) {
    picture.append(svg("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, spec.none || "No method is switched on."));
    return picture;
  }
  const all = series.flatMap((one) => one.points), xs = all.map((point) => point.x);
  const ys = all.flatMap((point) => [point.y - (point.spread || 0), point.y + (point.spread || 0)])
    .filter((value) => !spec.y.log || value > 0);
  let [x0, x1] = extremes(xs), [y0, y1] = extremes(ys.length ? ys : all.map((point) => point.y));
  if (spec.y.log) [y0, y1] = [y0 / 1.05, y1 * 1.05];
  else {
    const room = Math.max((y1 - y0) * 0.05, Math.abs(y1) * 0.005, 1e-9);
    [y0, y1] = [y0 - room, y1 + room];
    if (spec.y.bounds) [y0, y1] = [Math.max(y0, spec.y.bounds[0]), Math.min(y1, spec.y.bounds[1])];
  }
  const yTicks = spec.y.log ? logTicks(y0, y1) : ticks(y0, y1, 5);
  const left = 16 + 6.4 * Math.max(3, ...yTicks.map((at) => spec.y.show(at).length));
  const x = scaleOf(x0, x1, left + 6, width - right, spec.x.log), y = scaleOf(y0, y1, height - bottom, top, spec.y.log);
  for (const at of yTicks) picture.append(
    svg("line", {class: "grid", x1: left, x2: width - right, y1: y(at), y2: y(at)}),
    svg("text", {x: left - 7, y: y(at) + 4, "text-anchor": "end"}, spec.y.show(at)));
  let last = -Infinity;
  const across = spec.x.log ? logTicks(x0, x1) : ticks(x0, x1, width / 85);
  for (const at of new Set(spec.x.whole ? [x0, ...across.map(Math.round)] : across)) {
    const text = spec.x.show(at), half = 3.2 * text.length;
    if (at < x0 || at > x1 * 1.000001 || x(at) - half < last + 8 || x(at) + half > width) continue;
    last = x(at) + half;
    picture.append(svg("text", {x: x(at), y: height - bottom + 17, "text-anchor": "middle"}, text));
  }
  picture.append(svg("text", {class: "axis", x: width - right, y: height - 4, "text-anchor": "end"}, spec.x.name));
  for (const target of (spec.targets || []).filter((one) => one > y0 && one < y1))
    picture.append(svg("line", {class: "target", x1: left, x2: width - right, y1: y(target), y2: y(target)}));
  const at = (px, value) => `${x(px).toFixed(1)} ${y(Math.min(Math.max(value, y0), y1)).toFixed(1)}`;
  for (const {entry, points} of series) {
    const edge = (sign) => points.map((p) => at(p.x, p.y + sign * (p.spread || 0)));
    if (points.some((point) => point.spread) && !spec.dots)
      picture.append(svg("path", {class: "band " + styled(entry), d: `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`}));
    if (!spec.dots && points.length > 1)
      picture.append(svg("path", {class: "series " + styled(entry), "data-label": entry.label, "stroke-dasharray": dash(entry),
        d: "M" + points.map((point) => at(point.x, point.y)).join("L")}));
    if (spec.dots || points.length === 1)
      for (const point of points) picture.append(svg("circle", {class: "dot " + styled(entry), "data-label": entry.label,
        cx: x(point.x).toFixed(1), cy: y(point.y).toFixed(1), r: spec.dots ? 4 : 3.5}));
  }
  const cursor = svg("line", {class: "cursor", y1: top, y2: height - bottom, visibility: "hidden"});
  picture.append(cursor);
  const grid = [...new Set(xs)].sort((a, b) => a - b);
  const nearest = (points, to) => points.reduce((best, point) =>
    Math.abs(point.x - to) < Math.abs(best.x - to) ? point : best);
  const words = (to) => {
    cursor.setAttribute("x1", x(to));
    cursor.setAttribute("x2", x(to));
    cursor.setAttribute("visibility", "visible");
    const rows = series.map((one) => [one.entry.label, nearest(one.points, to)])
      .sort((a, b) => (spec.y.lower ? 1 : -1) * (a[1].y - b[1].y));
    return [spec.x.head(to), ...rows.slice(0, 14).map(([label, point]) => `${label}: ${point.words}`),
      rows.length > 14 ? `… and ${rows.length - 14} more` : null].filter(Boolean).join("\n");
  };
  let place = -1;
  hinted(picture, (event) => {
    const box = picture.getBoundingClientRect(), px = (event.clientX - box.left) / box.width * width;
    place = grid.reduce((best, one, index) => Math.abs(x(one) - px) < Math.abs(x(grid[best]) - px) ? index : best, 0);
    return words(grid[place]);
  });
  picture.addEventListener("pointerleave", () => cursor.setAttribute("visibility", "hidden"));
  picture.addEventListener("blur", () => { cursor.setAttribute("visibility", "hidden"); tell(null); });
  picture.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    place = Math.min(Math.max(place + step, 0), grid.length - 1);
    const box = picture.getBoundingClientRect();
    tell(words(grid[place]), box.left + x(grid[place]), box.top + top);
  });
  return picture;
}

const AXES = {
  round: {name: "round", whole: true, show: number, head: (x) => "round " + x},
  bytes: {name: "bytes sent and received, one seed's run", show: bytes, head: bytes},
  seconds: {name: "seconds, all seeds together", show: number, head: (x) => span(x)},
};

const SCORES = {test_loss: "test loss", train_loss: "training loss"};
function scoreName(key, metric) {
  return key === "test_" + metric.name && metric.unit ? `test ${metric.name} (${metric.unit})`
    : SCORES[key] || key.replace("_", " ");
}

// The score of every method of a group over rounds, bytes or seconds.
function curves(group, kind, title, axis) {
  const metric = group.metric, main = "test_" + metric.name;
  const keys = [...new Set(group.entries.flatMap((entry) => Object.keys(entry.curves)))];
  const state = {axis, score: keys.includes(main) ? main : keys[0], x: false, y: false};
  let plot = null;
  const set = (name) => (value) => { state[name] = value; plot.draw(); };
  const axes = Object.entries(AXES).map(([key]) => [key, {round: "rounds", bytes: "bytes", seconds: "seconds"}[key]]);
  const controls = [
    choice("score", keys.map((key) => [key, scoreName(key, metric)]), set("score"), state.score),
    choice("over", axes, set("axis"), axis), tick("log x", set("x")), tick("log y", set("y"))];
  const make = (width) => {
    const percent = state.score === main && metric.percent, factor = percent ? 100 : 1;
    const shownAs = state.score === main ? metric : {percent: false};
    const series = group.entries.filter((entry) => entry.curves[state.score]).map((entry) => {
      const curve = entry.curves[state.score], seeds = entry.seeds.length;
      return {entry, points: curve.mean.map((mean, i) => known(mean) ? {
        x: curve[state.axis][i], y: factor * mean, spread: known(curve.std[i]) ? factor * curve.std[i] : 0,
        words: score(mean, shownAs) + (known(curve.std[i]) ? " ± " + spreadOf(curve.std[i], shownAs) : "") +
          (seeds > 1 ? ` (${curve.seeds[i] === seeds ? seeds : `${curve.seeds[i]} of ${seeds}`} seeds)` : "") +
          (state.axis === "round" ? "" : `, round ${curve.round[i]}`)} : {x: null, y: null})};
    });
    const name = scoreName(state.score, metric);
    return lines(width, {series, label: `${group.title}: ${name} over ${AXES[state.axis].name}`,
      none: series.some((one) => isShown(one.entry)) ? "Nothing to draw: no value is finite, or above zero for a log axis." : null,
      x: {...AXES[state.axis], log: state.x}, targets: state.score === main ? group.targets.map((t) => factor * t) : [],
      y: {log: state.y, show: number, bounds: percent ? [0, 100] : null,
        lower: state.score === main ? !metric.higher_is_better : /loss/.test(state.score)}});
  };
  const several = group.entries.some((entry) => entry.seeds.length > 1);
  const note = () => {
    const on = group.entries.filter(isShown).map((entry) => [entry, entry.curves[state.score]]);
    const silent = on.filter(([, curve]) => !curve || !curve.mean.some(known)).map(([entry]) => entry.label);
    const fewer = on.some(([entry, curve]) => curve && curve.seeds.some((count) => count && count < entry.seeds.length));
    return [several ? "Lines are means over seeds, bands ± one standard deviation."
      : "One seed: there is no spread to show.",
    fewer ? "Where a seed has no finite value, they are those of the others." : null,
    silent.length ? `No finite value: ${silent.join(", ")}.` : null,
    group.thinned ? "Some rounds are left out of the drawing; tables use all." : null,
    state.score === main && group.targets.length ? "Dotted: the targets." : null].filter(Boolean).join(" ");
  };
  const [whole, made] = figure(kind, title, controls, make, note);
  plot = made;
  return whole;
}

// How the clients are served: from the worst to the best one, or one by one.
function clientScores(group) {
  const told = group.clients;
  if (!told) return null;
  const metric = group.metric, factor = metric.percent ? 100 : 1, names = (group.partition || {}).names || [];
  const first = told.entries.find(Boolean), state = {by: "rank", log: false};
  let plot = null;
  const set = (name) => (value) => { state[name] = value; plot.draw(); };
  const controls = [choice("clients", [["rank", "from worst to best"], ["client", "one by one"]], set("by"), "rank"),
    tick("log y", set("log"))];
  const make = (width) => {
    const series = group.entries.map((entry, index) => ({entry, one: told.entries[index]})).filter((row) => row.one)
      .map(({entry, one}) => ({entry, points: state.by === "rank"
        ? one.mean.map((mean, i) => ({x: one.ranks[i], y: factor * mean, spread: factor * (one.std[i] || 0),
          words: score(mean, metric) + (known(one.std[i]) ? ` ± ${spreadOf(one.std[i], metric)} (${one.seeds} seeds)` : "")}))
        : one.clients.map(([client, value, rows]) => ({x: client, y: factor * value,
          words: score(value, metric) + (known(rows) ? `, ${many(rows, "row")}` : "")}))}));
    return lines(width, {series, dots: state.by === "client", label: `${group.title}: ${metric.name} of clients`,
      x: {name: state.by === "rank" ? "client, from the worst on" : "client", whole: true, show: number,
        head: (x) => state.by === "rank" ? (x === 1 ? "the worst client" : `client ${x} from the worst`) : names[x] || `client ${x}`},
      y: {log: state.log, show: number, bounds: metric.percent ? [0, 100] : null, lower: !metric.higher_is_better}});
  };
  const rows = {"held out": "the rows that each keeps back", "test set": "the global test set, with each client's own model",
    training: "the rows that each trains on (nobody keeps rows back: partition.holdout)"};
  const note = () => `At the end, on ${told.rows.map((kind) => rows[kind]).join(", or on ")}. ` + (state.by === "rank"
    ? "Clients of different seeds hold different rows, so those of one rank are put together."
    : `Seed ${first.seed}` + (first.of > first.clients.length ? `, the first ${first.clients.length} of ${first.of} clients.` : "."));
  const [whole, made] = figure("clients", `${metric.name} of clients` + (metric.unit ? ` (${metric.unit})` : ""), controls, make, note);
  plot = made;
  return whole;
}

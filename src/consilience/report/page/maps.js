// Who holds what, as bubbles; and maps of cells: nodes over rounds, and the curvature of outputs at clients.
function tickStep(count, room) {
  for (let power = 1; ; power *= 10) for (const step of [1, 2, 5]) if (count / (step * power) <= room) return step * power;
}

// Tells the cell of a grid at the pointer, or where arrow keys lead; grid: {left, top, width, height, columns, rows},
// in sizes of a cell.
function explored(picture, grid, words) {
  const mark = svg("rect", {class: "mark", width: grid.width, height: grid.height, visibility: "hidden"});
  const leave = () => mark.setAttribute("visibility", "hidden");
  let at = null;
  const visit = (column, row) => {
    at = [column, row];
    for (const [name, value] of [["x", grid.left + column * grid.width], ["y", grid.top + row * grid.height], ["visibility", "visible"]])
      mark.setAttribute(name, value);
    return words(row, column);
  };
  picture.setAttribute("tabindex", 0);
  picture.append(mark);
  hinted(picture, (event) => {
    const box = picture.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - grid.left) / grid.width);
    const row = Math.floor((event.clientY - box.top - grid.top) / grid.height);
    if (column >= 0 && column < grid.columns && row >= 0 && row < grid.rows) return visit(column, row);
    leave();
    return null;
  });
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", () => { leave(); tell(null); });
  picture.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (place, count) => Math.min(Math.max(place, 0), count - 1);
    const told = at ? visit(within(at[0] + step[0], grid.columns), within(at[1] + step[1], grid.rows)) : visit(0, 0);
    mark.scrollIntoView({block: "nearest", inline: "nearest"});
    const box = mark.getBoundingClientRect();
    tell(told, box.right, box.bottom);
  });
  return picture;
}

function bubbles(group) {
  const part = group.partition;
  if (!part) return null;
  const counts = part.counts, clients = counts.length, classes = counts[0].length;
  const largest = Math.max(1, extremes(counts.flat())[1]), name = (client) => part.names[client] || `client ${client}`;
  const make = (given) => {
    const left = part.classes ? 34 : 12, cell = Math.max(9, Math.min(34, (given - left - 12) / clients));
    const row = Math.min(cell, 26), width = Math.max(given, left + clients * cell + 12);
    const words = part.names.map((one) => one.length > 14 ? one.slice(0, 13) + "…" : one);
    const below = Math.max(20, ...words.map((one) => 6.2 * one.length + 8)), height = classes * row + below + 24;
    const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${group.title}: rows of each class at each client`});
    const radius = (count) => 0.48 * row * Math.sqrt(count / largest);
    const stepX = tickStep(clients, (width - left) / 34), stepY = tickStep(classes, classes * row / 13);
    for (let client = 0; client < clients; client += words.length ? tickStep(clients, (width - left) / 13) : stepX) {
      const [x, y] = [left + (client + 0.5) * cell, classes * row + (words.length ? 12 : 20)];
      picture.append(words.length
        ? svg("text", {x, y, "text-anchor": "end", transform: `rotate(-90 ${x} ${y})`, dy: 4}, words[client])
        : svg("text", {x, y, "text-anchor": "middle"}, String(client)));
    }
    for (let label = 0; label < classes; label += 1) {
      const y = (classes - label - 0.5) * row + 4;
      picture.append(svg("line", {class: "grid", x1: left, x2: left + clients * cell, y1: y, y2: y}));
      if (part.classes && label % stepY === 0)
        picture.append(svg("text", {x: left - 8, y: y + 4, "text-anchor": "end"}, String(label)));
    }
    const d = counts.flatMap((held, client) => held.map((count, label) => {
      if (!count) return "";
      const r = Math.max(radius(count), 0.8), x = left + (client + 0.5) * cell - r, y = (classes - label - 0.5) * row + 4;
      return `M${x.toFixed(1)} ${y.toFixed(1)}a${r.toFixed(2)} ${r.toFixed(2)} 0 1 0 ${(2 * r).toFixed(2)} 0` +
        `a${r.toFixed(2)} ${r.toFixed(2)} 0 1 0 ${(-2 * r).toFixed(2)} 0`;
    }));
    picture.append(svg("path", {class: "bubble", d: d.join("")}),
      svg("text", {class: "axis", x: left, y: height - 4}, part.classes ? "client (classes upwards)" : "client"));
    const grid = {left, top: 4, width: cell, height: row, columns: clients, rows: classes};
    return explored(picture, grid, (place, client) => {
      const total = counts[client].reduce((sum, count) => sum + count, 0), label = classes - 1 - place;
      return `${name(client)}: ${many(total, "row")}` + (part.classes ? `\nclass ${label}: ${counts[client][label]}` : "");
    });
  };
  const note = [`Seed ${part.seed}: ${part.recipe}. The largest bubble is ${many(largest, "row")}`,
    part.held_out ? `, and ${many(part.held_out, "row")} are kept back by clients` : "",
    part.dropped ? `; ${many(part.dropped, "row")} nobody holds` : "", ".",
    clients < part.clients ? ` The first ${clients} of ${part.clients} clients.` : "",
    part.classes ? "" : " Rows by class are not known: there are no classes, too many of them, or the run did not write it down."].join("");
  return figure("partition", "Who holds what", null, make, note, clients > 40)[0];
}

// A map of cells. spec: values [rows][columns], shares of them, names of rows and columns, words of a cell.
function cells(given, spec) {
  const rows = spec.values.length, columns = spec.values[0].length, left = 46;
  const width = Math.max(given, left + columns * 2 + 12), cell = (width - left - 12) / columns;
  const row = Math.min(20, Math.max(480 / rows, 1.5)), height = rows * row + 44;
  const canvas = el("canvas", {width: columns, height: rows}), paper = canvas.getContext("2d");
  spec.values.forEach((line, r) => line.forEach((value, c) => {
    const share = known(value) ? spec.share(value, c) : null;
    if (share === null || Number.isNaN(share)) return;
    paper.fillStyle = rgb(mixed(share));
    paper.fillRect(c, r, 1, 1);
  }));
  const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.label},
    svg("image", {class: "heat", href: canvas.toDataURL(), x: left, y: 4, width: columns * cell, height: rows * row,
      preserveAspectRatio: "none"}));
  const stepX = tickStep(columns, (width - left) / 40), stepY = tickStep(rows, rows * row / 14);
  for (let c = 0; c < columns; c += stepX) picture.append(svg("text",
    {x: left + (c + 0.5) * cell, y: rows * row + 20, "text-anchor": "middle"}, String(spec.column(c))));
  for (let r = 0; r < rows; r += stepY) picture.append(svg("text",
    {x: left - 7, y: 4 + (r + 0.5) * row + 4, "text-anchor": "end"}, String(spec.row(r))));
  picture.append(svg("text", {class: "axis", x: left, y: height - 4}, spec.axes));
  return explored(picture, {left, top: 4, width: cell, height: row, columns, rows}, spec.words);
}
function colourBar(low, high) {
  const bar = svg("svg", {viewBox: "0 0 60 4", preserveAspectRatio: "none", "aria-hidden": "true"});
  for (let part = 0; part < 60; part += 1)
    bar.append(svg("rect", {x: part, y: 0, width: 1.1, height: 4, fill: rgb(mixed(part / 59))}));
  return el("div", {class: "scale"}, low, bar, high);
}

// A figure with the map of one method at a time.
function mapped(group, kind, title, told, more, make, note, wide) {
  const there = group.entries.map((entry, index) => [index, entry]).filter(([index]) => told.entries[index]);
  const state = {at: there[0][0]};
  let plot = null;
  const redraw = () => plot.draw();
  const controls = [there.length > 1 ? choice("method", there.map(([index, entry]) => [String(index), entry.label]),
    (value) => { state.at = Number(value); redraw(); }, String(state.at)) : null, more(redraw)];
  const [whole, made] = figure(kind, title, controls, (width) => make(width, told.entries[state.at], group.entries[state.at]),
    () => note(told.entries[state.at]), wide);
  plot = made;
  return whole;
}

function nodeMap(group) {
  if (!group.nodes) return null;
  const metric = group.metric, names = (group.partition || {}).names || [];
  const values = group.nodes.entries.flatMap((one) => one ? one.values.flat() : []).filter(known);
  const [low, high] = values.length ? extremes(values) : [0, 1];
  const share = (value) => {
    const part = (value - low) / (high - low || 1);
    return metric.higher_is_better ? part : 1 - part;
  };
  const ends = metric.higher_is_better ? [low, high] : [high, low];
  return mapped(group, "nodes", `${metric.name} of nodes over rounds`, group.nodes, () => null, (width, one, entry) =>
    el("div", null, cells(width, {values: one.values, share, axes: "round (nodes downwards)",
      label: `${group.title}: ${metric.name} of every node of ${entry.label}`,
      row: (r) => names[r] ? names[r].slice(0, 6) : r, column: (c) => one.rounds[c],
      words: (r, c) => `${names[r] || "node " + r}, round ${one.rounds[c]}: ${score(one.values[r][c], metric)}`}),
    colourBar(score(ends[0], metric), score(ends[1], metric))),
  (one) => `Seed ${one.seed}; one scale for all methods of the group.` +
    (one.nodes > one.values.length ? ` The first ${one.values.length} of ${one.nodes} nodes.` : ""));
}

function curvatureMap(group) {
  if (!group.curvature) return null;
  const state = {each: true, log: false}, part = group.partition, names = (part || {}).names || [];
  const more = (redraw) => [tick("each client by its largest", (on) => { state.each = on; redraw(); }, true),
    tick("log", (on) => { state.log = on; redraw(); })];
  // Clients stand side by side and classes upwards, as they do where it is shown who holds what.
  return mapped(group, "curvature", "Curvature of each output at each client", group.curvature, more, (width, one, entry) => {
    const tops = one.values.map((line) => Math.max(extremes(line.filter(known))[1], 0)), top = extremes(tops)[1];
    const outputs = extremes(one.values.map((line) => line.length))[1], output = (r) => outputs - 1 - r;
    const called = (c) => names[one.clients[c]] || `client ${one.clients[c]}`;
    const share = (value, c) => {
      const most = state.each ? tops[c] : top;
      if (!most) return 0;
      return state.log ? Math.max(0, 1 + Math.log10(Math.max(value / most, 1e-6)) / 6) : value / most;
    };
    const values = Array.from({length: outputs}, (_, r) => one.values.map((line) => line[output(r)]));
    return el("div", null, cells(width, {values, share, axes: "client (outputs, i.e. classes, upwards)",
      label: `${group.title}: curvature of outputs at clients of ${entry.label}`,
      row: output, column: (c) => (names[one.clients[c]] || String(one.clients[c])).slice(0, 6),
      words: (r, c) => {
        const value = values[r][c], held = part && part.classes && part.counts[one.clients[c]];
        return `${called(c)}, output ${output(r)}: ${known(value) ? value.toPrecision(3) : "–"}` +
          (held && known(held[output(r)]) ? `\n${many(held[output(r)], "row")} of this class` : "");
      }}), colourBar(state.log ? "1e-6 of the largest" : "0", state.each ? "a client's largest" : top.toPrecision(3)));
  }, (one) => `Seed ${one.seed}: after one more local training from the final model, the mean of the empirical Fisher ` +
    "diagonal of the last layer over the parameters of each output, per row (what HWA weighs by before it has unit norm)." +
    (one.of > one.clients.length ? ` The first ${one.clients.length} of ${one.of} clients.` : ""),
  group.curvature.entries.some((one) => one && one.clients.length > 40));
}

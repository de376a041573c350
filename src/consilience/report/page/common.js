"use strict";
// What all pages share. Names and notes are anybody's: they only ever become text nodes, never markup.
const SVG = "http://www.w3.org/2000/svg";
const WORST_TO_BEST = {
  light: [[233, 245, 217], [127, 205, 187], [44, 127, 184], [18, 38, 110]],
  dark: [[38, 54, 92], [34, 105, 160], [65, 182, 176], [226, 244, 170]]};
const night = matchMedia("(prefers-color-scheme: dark)");
const scheme = () => document.documentElement.dataset.theme;
function dress(theme) {
  document.documentElement.dataset.theme = theme || (night.matches ? "dark" : "light");
}
dress();

function fill(one, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== null && value !== undefined && value !== false) one.setAttribute(name, value);
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined) one.append(child);
  return one;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const known = (value) => typeof value === "number" && Number.isFinite(value);

function score(value, metric, unit = true) {
  if (!known(value)) return "–";
  if (metric.percent) return (100 * value).toFixed(2) + (unit ? " %" : "");
  const size = Math.abs(value);
  return size >= 999.95 && size < 999999.5 ? value.toFixed(0) : value.toPrecision(4);
}
function spreadOf(value, metric) {
  return !known(value) ? "–" : metric.percent ? (100 * value).toFixed(2) : String(Number(value.toPrecision(2)));
}
function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let power = 0;
  while (Number(value.toPrecision(3)) >= 1000 && power < units.length - 1) { value /= 1000; power += 1; }
  return (power ? value.toPrecision(3) : String(Math.round(value))) + " " + units[power];
}
function span(seconds) {
  if (!known(seconds)) return "–";
  seconds = Math.max(0, seconds);
  if (seconds < 100) return (seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  return seconds < 172800 ? (seconds / 3600).toFixed(1) + " h" : Math.round(seconds / 86400) + " d";
}
// The least and the largest of many numbers: arguments of Math.min would be too many.
function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}
const many = (count, word) => count + " " + word + (count === 1 ? "" : "s");

function mixed(share) {
  const stops = WORST_TO_BEST[scheme()], at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2), rest = at - low;
  return stops[low].map((part, index) => Math.round(part + rest * (stops[low + 1][index] - part)));
}
const rgb = (parts) => "rgb(" + parts.join(",") + ")";
const letters = (parts) => 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] > 140 ? "#1c2430" : "#ffffff";

function tell(text, x, y) {
  const hint = document.getElementById("hint");
  hint.hidden = !text;
  hint.textContent = text || "";
  if (!text) return;
  const box = hint.getBoundingClientRect();
  hint.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  hint.style.top = (y + 14 + box.height > innerHeight ? Math.max(4, y - box.height - 14) : y + 14) + "px";
}
// What a finger has asked for stays until it touches something else, or the page moves.
document.addEventListener("pointerdown", () => tell(null), true);
addEventListener("scroll", () => tell(null), {passive: true});
function hinted(one, words) {
  for (const kind of ["pointermove", "pointerdown"])
    one.addEventListener(kind, (event) => tell(words(event), event.clientX, event.clientY));
  one.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") tell(null); });
  return one;
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((one) => one >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

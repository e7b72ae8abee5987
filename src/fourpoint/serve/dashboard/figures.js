// Small figures as SVG, built node by node: bars of a calendar, curves of a kernel, the histogram
// of rescaled gaps, and meters.

import { typeClass } from "./charts.js";
import { number } from "./format.js";

const SPACE = "http://www.w3.org/2000/svg";

function node(name, attributes = {}, text = null) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== null) made.textContent = text;
  return made;
}

function frame(width, height, label) {
  return node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

/** A bar from 0 to 1; beyond `limit` it has the colour of a warning. */
export function meter(share, { over = false } = {}) {
  const svg = node("svg", { viewBox: "0 0 100 7", preserveAspectRatio: "none", "aria-hidden": "true" });
  const width = Math.max(0, Math.min(1, share)) * 100;
  svg.append(node("rect", { width, height: 7, class: over ? "meter over" : "meter" }));
  return svg;
}

/** Bars with a label under some of them. */
export function bars(values, labels, label, { every = 1, rule = null, span = null, titles = labels } = {}) {
  const [width, height, foot] = [340, 132, 18];
  const svg = frame(width, height, label);
  const finite = values.filter(Number.isFinite);
  const most = Math.max(...finite, span ? span[1] : 0, 1e-12) * 1.04;
  const step = width / values.length;
  const y = (value) => (height - foot) * (1 - value / most);
  if (span) svg.append(node("rect", { x: 0, width, y: y(span[1]), height: y(Math.max(0, span[0])) - y(span[1]), class: "span" }));
  values.forEach((value, i) => {
    if (!Number.isFinite(value)) return;
    const bar = node("rect", {
      x: i * step + step * 0.09, width: step * 0.82, y: y(value), height: Math.max(0.5, height - foot - y(value)),
      rx: Math.min(2.5, step * 0.2), class: value === Math.max(...finite) && rule === null ? "mark-bar peak" : "mark-bar",
    });
    bar.append(node("title", {}, `${titles[i]}: ${number(value)}`));
    svg.append(bar);
    if (i % every === 0) svg.append(node("text", { x: (i + 0.5) * step, y: height - 4, "text-anchor": "middle" }, labels[i]));
  });
  svg.append(node("line", { x1: 0, x2: width, y1: height - foot, y2: height - foot, class: "axis" }));
  if (rule !== null) svg.append(node("line", { x1: 0, x2: width, y1: y(rule), y2: y(rule), class: "rule" }));
  return svg;
}

/** The smallest of 1, 2 and 5 times a power of ten that is at least `size`. */
function roundStep(size) {
  const power = 10 ** Math.floor(Math.log10(size));
  return power * ([1, 2, 5].find((digit) => digit * power >= size * (1 - 1e-9)) ?? 10);
}

/** Curves over lags, one per name; the largest value is labelled. */
export function curves(lags, lines, label) {
  const [width, height, foot, left] = [340, 150, 18, 4];
  const svg = frame(width, height, label);
  const longest = lags[lags.length - 1] || 1;
  let most = 0;
  let least = 0;
  for (const [, values] of lines) {
    for (const v of values) if (Number.isFinite(v)) { most = Math.max(most, v); least = Math.min(least, v); }
  }
  const height0 = height - foot - 12;
  const range = (most - least) || 1;
  const x = (lag) => left + (width - left - 4) * (lag / longest);
  const y = (value) => 12 + height0 * (1 - (value - least) / range);
  svg.append(node("line", { x1: 0, x2: width, y1: y(0), y2: y(0), class: "axis" }));
  lines.forEach(([name, values], i) => {
    const path = values.map((v, k) => `${k ? "L" : "M"}${x(lags[k]).toFixed(2)} ${y(v).toFixed(2)}`).join("");
    const line = node("path", { d: path, class: `curve ${typeClass(i)}` });
    line.append(node("title", {}, name));
    svg.append(line);
  });
  svg.append(node("text", { x: 0, y: 9 }, number(most)));
  const step = roundStep(longest / 5);
  for (let k = 0; k * step <= longest; k += 1) {
    const where = x(k * step);
    const anchor = k === 0 ? "start" : where > width - 12 ? "end" : "middle";
    svg.append(node("text", { x: where, y: height - 3, "text-anchor": anchor }, number(k * step)));
  }
  return svg;
}

/** An interval with its mean, on an axis that contains 0. */
export function interval(mean, low, high, label) {
  const [width, height] = [340, 46];
  const svg = frame(width, height, label);
  const most = Math.max(Math.abs(low), Math.abs(high), 1e-9) * 1.15;
  const x = (value) => width / 2 + (width / 2) * (value / most);
  svg.append(
    node("line", { x1: x(0), x2: x(0), y1: 2, y2: 30, class: "rule" }),
    node("rect", { x: x(low), width: Math.max(1, x(high) - x(low)), y: 10, height: 12, rx: 6, class: "mark-bar" }),
    node("circle", { cx: x(mean), cy: 16, r: 5, class: "mark-bar peak" }),
    node("text", { x: 0, y: 43 }, "live better"),
    node("text", { x: width, y: 43, "text-anchor": "end" }, "shadow better"),
    node("text", { x: x(0), y: 43, "text-anchor": "middle" }, "0"),
  );
  return svg;
}

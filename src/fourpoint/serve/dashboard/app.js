// The dashboard: fetches what the service knows, draws it, and follows the live stream. All text
// that comes from data is set as textContent.

import { CountChart, RateChart, typeClass } from "./charts.js";
import { bars, curves, interval, meter } from "./figures.js";
import { Times, count, expected, number, pValue, percent, rate, span } from "./format.js";
import { follow } from "./live.js";

const SIGNS = { burst: "▲", silence: "▼", drift: "◆" };
const KIND_NAMES = { burst: "Burst", silence: "Silence", drift: "Drift" };
const AHEAD = 0.25; // the forecast's share of the window
const MOST_TICKS = 4000;

const $ = (id) => document.getElementById(id);
const state = {
  status: null, times: null, marks: [], window: null, entity: "", history: null, forecast: null,
  events: [], alarms: [], now: null, rateChart: null, countChart: null, connected: false,
  seenAlarms: null, lastClock: null,
};

// ---------------------------------------------------------------- requests

function token() {
  try { return sessionStorage.getItem("fourpoint-token") || ""; } catch { return ""; }
}

function headers() {
  const own = token();
  return own ? { Authorization: `Bearer ${own}` } : {};
}

class Refused extends Error {}

async function get(path, parameters = {}) {
  const query = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined),
  );
  const text = query.toString();
  const response = await fetch(text ? `${path}?${text}` : path, { headers: headers(), cache: "no-store" });
  if (response.status === 401 || response.status === 403) throw new Refused(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

/** Runs a request at most once per `pause` milliseconds, and once more after the last call. */
function paced(work, pause) {
  let timer = null;
  let last = -Infinity;
  let running = false;
  let again = false;
  async function run() {
    timer = null;
    if (running) { again = true; return; }
    running = true;
    last = performance.now();
    try {
      await work();
    } catch (error) {
      if (error instanceof Refused) askForToken();
      else if (state.connected && !(error instanceof TypeError)) console.warn(error.message);
    } finally {
      running = false;
      if (again) { again = false; call(); }
    }
  }
  function call() {
    if (timer !== null) return;
    timer = setTimeout(run, Math.max(0, last + pause - performance.now()));
  }
  call.now = () => { clearTimeout(timer); last = performance.now(); return run(); };
  return call;
}

// ---------------------------------------------------------------- drawing helpers

function element(name, { text = null, className = "", attributes = {} } = {}, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function setText(id, text) {
  const target = $(id);
  if (target.textContent !== text) target.textContent = text;
}

function tile(id, value, unit = "", note = "", tone = "") {
  const big = $(`tile-${id}`);
  const wanted = `${value} ${unit}`;
  if (big.dataset.shown !== wanted) {
    big.dataset.shown = wanted;
    big.textContent = value;
    if (unit) big.append(" ", element("small", { text: unit }));
  }
  big.dataset.tone = tone;
  setText(`tile-${id}-note`, note);
}

/** Said by screen readers; what a key reads out of the chart does not replace it. */
function announce(text) { $("announcer").textContent = text; }

// ---------------------------------------------------------------- status, clock and windows

const refreshStatus = paced(async () => takeStatus(await get("/v1/status")), 900);

/** A whole status, or the brief one of the stream, which says how far events have come. */
function takeStatus(status) {
  const isWhole = status.version !== undefined;
  if (!isWhole && !state.status) return;
  const before = state.status;
  state.status = { ...before, ...status };
  const isNew = isWhole && (!before || before.version !== status.version || before.started !== status.started);
  if (isNew) prepare(state.status);
  state.now = state.status.now === null ? null : state.times.parse(state.status.now);
  drawStatus();
}

/** Another model, or another start of the service: everything is drawn anew. */
function prepare(status) {
  state.times = new Times(status);
  state.marks = status.marks && status.marks.length ? status.marks : ["events"];
  const windows = status.windows && status.windows.length ? status.windows : [1, 6, 24];
  if (!windows.includes(state.window)) state.window = status.window ?? windows[windows.length - 1];
  drawWindows(windows);
  for (const chart of [state.rateChart, state.countChart]) if (chart) chart.close();
  state.rateChart = new RateChart($("rate-chart"), state.times, state.marks, onCursor);
  state.countChart = new CountChart($("counts-chart"), state.times);
  refreshHistory();
  refreshForecast();
  refreshModel();
  refreshEntities();
  refreshAlarms();
}

function drawWindows(windows) {
  const legend = element("legend", { text: "Window" });
  const choices = windows.map((hours) => {
    const input = element("input", { attributes: { type: "radio", name: "window", value: String(hours) } });
    input.checked = hours === state.window;
    input.addEventListener("change", () => {
      state.window = hours;
      state.forecast = null;
      refreshHistory.now();
      refreshForecast.now();
    });
    return element("label", {}, input, element("span", { text: shortSpan(hours) }));
  });
  $("windows").replaceChildren(legend, ...choices);
}

function shortSpan(hours) {
  const unit = state.times.unit;
  if (!["seconds", "minutes", "hours", "days", "weeks"].includes(unit)) return number(hours);
  if (hours < 1 / 60) return `${number(hours * 3600)} s`;
  if (hours < 1) return `${number(hours * 60)} min`;
  if (hours <= 48) return `${number(hours)} h`;
  return `${number(hours / 24)} d`;
}

function drawStatus() {
  const { status, times } = state;
  setText("model-name", `${status.model} · ${status.folder}`);
  $("model-name").title = `version ${status.version}`;
  const clock = $("clock");
  setText("clock", times.text(state.now, "full"));
  if (times.dated) clock.dateTime = new Date(state.now * 1000).toISOString();
  drawGoodness(status.goodness);
  drawShadow(status.shadow);
  const lateness = status.lateness ? `; events may come ${number(status.lateness)} ${status.unit} late` : "";
  setText("foot", `${count(status.events)} events of ${count(status.entities)} ${status.entities === 1 ? "entity" : "entities"}${lateness}. Model version ${status.version}.`);
  const notice = $("notice");
  notice.hidden = !status.drift;
  if (status.drift) setText("notice", "The events have drifted away from the model. Refit it with the command “fourpoint refit”.");
}

function drawGoodness(fit) {
  if (!fit || fit.verdict === null || !Number.isFinite(fit.p_value)) {
    tile("fit", "–", "", fit && fit.reason ? fit.reason : "");
    setText("fit-verdict", `There is no verdict on the last day${fit && fit.reason ? `: ${fit.reason}` : ""}.`);
    $("fit-chart").replaceChildren();
    setText("fit-caption", "");
    return;
  }
  const good = fit.p_value >= 0.01;
  tile("fit", fit.verdict, "", `${pValue(fit.p_value)}, ${count(fit.events)} events`, good ? "good" : "warn");
  setText("fit-verdict", good
    ? `The ${count(fit.events)} events of the last day agree with the model.`
    : `The ${count(fit.events)} events of the last day deviate from the model.`);
  const histogram = fit.histogram || [];
  if (!histogram.length) return;
  const flat = fit.events / histogram.length;
  const spread = 2.576 * Math.sqrt(flat * (1 - 1 / histogram.length));
  const labels = histogram.map((_, i) => `${Math.round(100 * i / histogram.length)}%`);
  const titles = histogram.map((_, i) => `gaps from the ${Math.round(100 * i / histogram.length)}% to the ${Math.round(100 * (i + 1) / histogram.length)}% quantile`);
  $("fit-chart").replaceChildren(bars(histogram, labels, "Histogram of rescaled gaps, which is flat under the model",
    { every: 2, rule: flat, span: [flat - spread, flat + spread], titles }));
  setText("fit-caption", `${pValue(fit.p_value)}. Gaps between events as quantiles of what the model expected: under the model all bars are equally high, `
    + "each within the shaded range in 99 of 100 cases. Tall bars on the left are events that came sooner than expected.");
}

function drawShadow(shadow) {
  $("shadow").hidden = !shadow;
  if (!shadow) return;
  if (shadow.low === null) {
    setText("shadow-text", `${count(shadow.events)} events have been compared; an interval needs 640.`);
    $("shadow-chart").replaceChildren();
    return;
  }
  const side = shadow.low > 0 ? "The shadow model is better" : shadow.high < 0 ? "The live model is better" : "No difference can be told yet";
  const text = `${side}: ${number(shadow.gain)} nats per event (95% interval ${number(shadow.low)} to ${number(shadow.high)}, ${count(shadow.events)} events).`;
  setText("shadow-text", text);
  $("shadow-chart").replaceChildren(interval(shadow.gain, shadow.low, shadow.high, text));
}

// ---------------------------------------------------------------- rates, events and counts

const refreshHistory = paced(async () => {
  if (!state.times) return;
  const asked = { window: state.window, entity: state.entity };
  const found = await get("/v1/history", { hours: asked.window, entity: asked.entity });
  if (asked.window !== state.window || asked.entity !== state.entity) { refreshHistory(); return; }
  const parse = (value) => state.times.parse(value);
  state.history = {
    times: found.times.map(parse),
    rates: state.marks.map((mark) => found.rates[mark] || []),
    bins: found.bins.map(parse),
    observed: found.observed,
    expected: found.expected,
    counts: found.counts || {},
    total: found.total ?? found.observed.reduce((a, b) => a + b, 0),
  };
  state.events = found.events.map(tick);
  state.history.approximate = found.approximate;
  if (found.now !== null) state.now = Math.max(state.now ?? -Infinity, parse(found.now));
  if (!state.entity) drawLatest(found.events[found.events.length - 1]);
  drawHistory();
}, 1000);

const refreshForecast = paced(async () => {
  if (!state.times) return;
  const asked = { window: state.window, entity: state.entity };
  const found = await get("/v1/outlook", { hours: state.window * AHEAD, entity: asked.entity });
  if (asked.window !== state.window || asked.entity !== state.entity) { refreshForecast(); return; }
  state.forecast = found;
  drawHistory();
}, 4000);

function tick(event) {
  return { x: state.times.parse(event.time), lane: Math.max(0, state.marks.indexOf(event.mark)) };
}

function drawLatest(event) {
  if (!event) return;
  const words = [state.status.entities > 1 ? event.entity : "", state.marks.length > 1 ? event.mark : "", state.times.text(state.times.parse(event.time), "hour")];
  setText("latest", `latest event: ${words.filter(Boolean).join(", ")}`);
}

/** The band of the rate ahead. */
function ahead() {
  const bands = state.forecast && state.forecast.bands;
  if (!bands || !bands.times.length) return { times: [], mean: [], low: [], high: [] };
  const times = bands.times.map((value) => state.times.parse(value));
  return { times, mean: bands.mean, low: bands.low, high: bands.high };
}

function drawHistory() {
  const { history, rateChart, countChart, times } = state;
  $("rate-empty").hidden = state.now !== null;
  if (!history || !rateChart || state.now === null) return;
  const width = state.window * times.perHour;
  const now = state.now;
  const forecast = ahead();
  // Points of an older forecast that time has passed are left out.
  const from = forecast.times.findIndex((t) => t > now);
  const shown = from < 0 ? { times: [], mean: [], low: [], high: [] } : {
    times: forecast.times.slice(from), mean: forecast.mean.slice(from),
    low: forecast.low.slice(from), high: forecast.high.slice(from),
  };
  rateChart.events = state.events;
  rateChart.set({ past: history, ahead: shown, range: [now - width, now + width * AHEAD], now });
  countChart.set(history);
  drawTypes();
  drawTiles();
}

function rateNow(index) {
  const own = state.history ? state.history.rates[index] : [];
  return own && own.length ? own[own.length - 1] : null;
}

function drawTypes() {
  const { forecast, history, marks, times } = state;
  const length = span(state.window * AHEAD, times.unit);
  setText("ahead-title", `Next ${length}`);
  const rows = marks.map((mark, i) => {
    const own = forecast && forecast.counts ? forecast.counts[mark] : null;
    const name = element("th", { attributes: { scope: "row" } },
      element("span", { className: `dot ${typeClass(i)}`, attributes: { "aria-hidden": "true" } }), mark);
    const cell = (text) => element("td", { text, className: "right" });
    return element("tr", {}, name, cell(rate(rateNow(i))), cell(count(history.counts[mark])),
      cell(own ? `${expected(own.mean)} (${count(own.q05)} to ${count(own.q95)})` : "–"),
      cell(own ? percent(own.p_any) : "–"));
  });
  replaceRows($("types"), rows);
  const future = forecast && forecast.reason ? `There is no forecast here: ${forecast.reason}.`
    : "The band contains the rate in 90 of 100 sampled futures, the dashed line is their mean; in brackets are 5% and 95% quantiles.";
  const averages = history.approximate ? " Rates are averages between events, since there are many entities." : "";
  setText("rate-caption", `Events ${times.perUnit}; each tick is an event. ${future}${averages}`);
}

function drawTiles() {
  const { forecast, history, times } = state;
  const total = state.marks.reduce((sum, _, i) => sum + (rateNow(i) ?? 0), 0);
  const largest = state.marks.map((mark, i) => [rateNow(i) ?? 0, mark]).sort((a, b) => b[0] - a[0])[0];
  tile("rate", number(total), times.perUnit,
    state.marks.length > 1 ? `${largest[1]}: ${number(largest[0])}` : state.entity || "all entities");
  setText("tile-next-title", `Next ${span(state.window * AHEAD, times.unit)}`);
  if (forecast && forecast.total) {
    tile("next", expected(forecast.total.mean), "expected", `90% interval ${count(forecast.total.q05)} to ${count(forecast.total.q95)}`);
  } else {
    tile("next", "–", "", forecast && forecast.reason ? forecast.reason : "");
  }
  const should = history.expected.reduce((a, b) => a + (b ?? 0), 0);
  setText("tile-count-title", `Last ${span(state.window, times.unit)}`);
  tile("count", count(history.total), "observed", `${expected(should)} expected`);
  const score = should > 0 ? (history.total - should) / Math.sqrt(should) : 0;
  const words = Math.abs(score) < 2 ? "in agreement with" : score > 0 ? "more than" : "fewer than";
  setText("counts-caption", `${count(history.total)} events observed, ${words} the ${expected(should)} that the model expected as they happened.`);
  $("counts-chart").setAttribute("aria-label", `Observed and expected counts per interval: ${$("counts-caption").textContent}`);
  $("rate-chart").setAttribute("aria-label",
    `Rate per type with forecast. Now ${number(total)} events ${times.perUnit}: ${state.marks.map((mark, i) => `${mark} ${number(rateNow(i))}`).join(", ")}. Use the arrow keys to read values.`);
  if (!state.reading) onCursor(null);
}

/** The values under the cursor, or now. */
function onCursor(index, spoken = false) {
  const { rateChart, times } = state;
  const data = rateChart && rateChart.data;
  const readout = $("readout");
  state.reading = index !== null && index !== undefined;
  if (!data || !data[0].length) return;
  const past = state.history.times.length;
  const at = state.reading ? index : past - 1;
  if (at < 0) return;
  const M = state.marks.length;
  const items = [element("strong", { text: state.reading ? times.text(data[0][at]) : "Now" })];
  if (at < past) {
    state.marks.forEach((mark, i) => {
      items.push(element("span", {}, element("span", { className: `dot ${typeClass(i)}` }), `${mark} ${number(data[i + 1][at])}`));
    });
    if (M > 1) items.push(element("span", { text: `together ${number(data[M + 1][at])}` }));
  } else {
    items.push(element("span", { text: `forecast ${number(data[M + 4][at])} (${number(data[M + 3][at])} to ${number(data[M + 2][at])})` }));
  }
  readout.replaceChildren(...items);
  if (spoken) $("spoken").textContent = items.map((item) => item.textContent).join(", ");
}

// ---------------------------------------------------------------- entities

const refreshEntities = paced(async () => {
  if (!state.times) return;
  const found = await get("/v1/entities", { sort: "surprise", limit: 50 });
  drawEntities(found);
}, 2500);

function replaceRows(body, rows) {
  // Focus stays on the same button when rows are replaced.
  const focused = document.activeElement && body.contains(document.activeElement) ? document.activeElement.dataset.entity : null;
  body.replaceChildren(...rows);
  if (focused !== null && focused !== undefined) {
    for (const button of body.querySelectorAll("button")) if (button.dataset.entity === focused) button.focus();
  }
}

function drawEntities(found) {
  const { times } = state;
  const largest = Math.max(1, ...found.entities.map((own) => own.surprise ?? 0));
  const sorted = found.entities.slice().sort((a, b) => b.surprise - a.surprise);
  const rows = sorted.map((own) => {
    const button = element("button", { className: "link", text: own.id, attributes: { type: "button" } });
    button.dataset.entity = own.id;
    button.title = own.id;
    button.addEventListener("click", () => choose(own.id === state.entity ? "" : own.id));
    const surprise = element("div", { className: "surprise" }, meter((own.surprise ?? 0) / largest, { over: own.surprise >= 1 }),
      element("span", { text: own.surprise.toFixed(2) }));
    const last = own.last_event === null || own.last_event === undefined ? "–" : times.ago(times.parse(own.last_event), state.now);
    const row = element("tr", {}, element("th", { attributes: { scope: "row" } }, button), element("td", {}, surprise),
      element("td", { className: "right", text: rate(own.rate) }), element("td", { className: "right", text: count(own.events) }),
      element("td", { className: "right", text: last }));
    if (own.id === state.entity) button.setAttribute("aria-current", "true");
    return row;
  });
  replaceRows($("entities"), rows);
  setText("entities-count", found.total > found.entities.length
    ? `${count(found.entities.length)} of ${count(found.total)}` : `${count(found.total)} in all`);
  setText("entities-caption", found.caption || "Surprise is how far the evidence against the model has come to an alarm: at 1 an alarm is raised. "
    + "Choose an entity to see its rate alone.");
  drawEntityChoice(found.entities.map((own) => own.id));
}

function drawEntityChoice(ids) {
  const select = $("entity");
  const wanted = ["", ...ids.slice().sort()];
  if (state.entity && !wanted.includes(state.entity)) wanted.push(state.entity);
  const present = Array.from(select.options, (option) => option.value);
  if (wanted.join("\n") !== present.join("\n")) {
    select.replaceChildren(...wanted.map((id) => element("option", { text: id || "all entities", attributes: { value: id } })));
  }
  select.value = state.entity;
}

function choose(entity) {
  state.entity = entity;
  state.forecast = null;
  $("entity").value = entity;
  refreshHistory.now();
  refreshForecast.now();
  refreshEntities.now();
}

// ---------------------------------------------------------------- alarms

const refreshAlarms = paced(async () => {
  if (!state.times) return;
  const found = await get("/v1/alarms", { limit: 100 });
  const known = state.seenAlarms;
  state.alarms = found.alarms || found;
  state.seenAlarms = new Set(state.alarms.map((alarm) => String(alarm.id)));
  if (known) {
    const fresh = state.alarms.filter((alarm) => !known.has(String(alarm.id)) && !alarm.acknowledged);
    if (fresh.length) announce(fresh.length === 1 ? `New alarm: ${alarmTitle(fresh[0])}` : `${fresh.length} new alarms`);
  }
  drawAlarms();
}, 700);

function alarmTitle(alarm) {
  const kind = KIND_NAMES[alarm.kind] || alarm.kind;
  if (alarm.of === "fleet") return `${kind} of all entities together`;
  if (alarm.of === "type") return `${kind} of type ${alarm.name}`;
  return alarm.name ? `${kind} at ${alarm.name}` : kind;
}

function alarmEvidence(alarm) {
  if (alarm.kind === "drift") {
    return `The distribution of rescaled gaps is ${number(alarm.size)} away from the model's (limit ${number(alarm.threshold)}).`;
  }
  const more = alarm.kind === "burst";
  const ratio = alarm.size >= 1 ? `${number(alarm.size)} times` : `${percent(alarm.size)} of`;
  return `${more ? "More" : "Fewer"} events than expected: ${ratio} the modelled rate since the change began.`;
}

function drawAlarms() {
  const open = state.alarms.filter((alarm) => !alarm.acknowledged);
  const done = state.alarms.filter((alarm) => alarm.acknowledged);
  const parts = [["alarms", open], ["acknowledged", done.slice(0, 30)]];
  for (const [id, list] of parts) keyedList($(id), list);
  $("alarms-empty").hidden = open.length > 0;
  $("acknowledged-part").hidden = done.length === 0;
  setText("acknowledged-title", `Acknowledged (${count(done.length)})`);
  setText("alarms-count", open.length ? `${count(open.length)} open` : "");
  const level = state.status.alarm_level;
  setText("alarms-empty-text", level === null ? "Alarms are switched off." : `No open alarm. Under the model, at most one false alarm is raised in ${count(1000 / level)} events on average.`);
  const latest = open[0];
  tile("alarms", count(open.length), "", latest ? alarmTitle(latest) : "none", open.length ? "warn" : "good");
  document.title = open.length ? `(${open.length}) Fourpoint` : "Fourpoint";
}

/** Rows are kept while their alarm stays, so that focus and scroll positions stay too. */
function keyedList(list, alarms) {
  const present = new Map(Array.from(list.children, (item) => [item.dataset.key, item]));
  const items = alarms.map((alarm) => present.get(alarmKey(alarm)) || alarmItem(alarm));
  if (items.length === list.children.length && items.every((item, i) => item === list.children[i])) return;
  list.replaceChildren(...items);
}

function alarmKey(alarm) { return `${alarm.id} ${Boolean(alarm.acknowledged)}`; }

function alarmItem(alarm) {
  const at = state.times.parse(alarm.time);
  const title = element("h3", {}, element("span", { className: "sign", text: SIGNS[alarm.kind] || "●", attributes: { "aria-hidden": "true" } }), alarmTitle(alarm));
  const share = alarm.threshold > 0 ? alarm.statistic / alarm.threshold : 1;
  const strength = element("p", { className: "soft",
    text: `Evidence ${number(alarm.statistic)}, alarm at ${number(alarm.threshold)}` });
  const evidence = element("div", { className: "evidence" }, element("p", { text: alarmEvidence(alarm) }), meter(share / 1.5, { over: true }), strength);
  const item = element("li", { className: `alarm ${alarm.kind}${alarm.acknowledged ? " done" : ""}` },
    title, element("time", { text: state.times.text(at), attributes: state.times.dated && Number.isFinite(at) ? { datetime: new Date(at * 1000).toISOString() } : {} }), evidence);
  item.dataset.key = alarmKey(alarm);
  item.dataset.id = String(alarm.id);
  if (!alarm.acknowledged) {
    const button = element("button", { text: "Acknowledge", attributes: { type: "button", "aria-label": `Acknowledge: ${alarmTitle(alarm)}` } });
    button.addEventListener("click", () => acknowledge(alarm, button));
    const buttons = element("p", { className: "buttons" }, button);
    if (alarm.of === "entity" && alarm.name) {
      const show = element("button", { className: "quiet", text: "Show", attributes: { type: "button", "aria-label": `Show ${alarm.name}` } });
      show.addEventListener("click", () => choose(alarm.name));
      buttons.append(show);
    }
    item.append(buttons);
  }
  return item;
}

async function acknowledge(alarm, button) {
  button.disabled = true;
  let message = "";
  try {
    const response = await fetch(`/v1/alarms/${encodeURIComponent(alarm.id)}/ack`, { method: "POST", headers: headers() });
    if (response.status === 401 || response.status === 403) message = "The token does not allow acknowledging alarms.";
    else if (!response.ok) message = `The alarm could not be acknowledged (${response.status}).`;
  } catch {
    message = "The service could not be reached; try again.";
  }
  if (message) {
    button.disabled = false;
    announce(message);
    button.after(element("span", { className: "error", text: message }));
    return;
  }
  alarm.acknowledged = true;
  announce(`Acknowledged: ${alarmTitle(alarm)}`);
  const next = $("alarms").querySelector("button");
  drawAlarms();
  ($("alarms").querySelector("button") || next || $("main")).focus?.();
  refreshAlarms();
}

// ---------------------------------------------------------------- the model

const refreshModel = paced(async () => {
  if (state.times) drawModel(await get("/v1/model"));
}, 5000);

const CALENDAR_LABELS = {
  weekday: ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
  month: ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
  monthday: Array.from({ length: 31 }, (_, i) => String(i + 1)),
};
const CALENDAR_TITLES = { hour: "Hour of the day", weekday: "Day of the week", month: "Month", week: "Hour of the week", monthday: "Day of the month" };

function drawModel(model) {
  const parts = [];
  const { kernel } = model;
  if (kernel && kernel.lags && kernel.lags.length) {
    const lines = Object.entries(kernel.values).slice(0, 8);
    const list = element("ul", { className: "legend" }, ...lines.map(([name], i) => element("li", { className: typeClass(i) },
      element("span", { className: `dot ${typeClass(i)}` }), element("span", { text: name }))));
    parts.push(part("After one event", curves(kernel.lags, lines, `Kernel over lags: ${lines.map(([name]) => name).join(", ")}`),
      list, element("p", { className: "caption", text: kernel.caption || `What one event adds to the rate, ${state.times.perUnit}, by the time since${state.times.unit ? `, in ${state.times.unit}` : ""}. ${offspring(kernel)}` })));
  }
  for (const [term, own] of Object.entries(model.calendar || {})) {
    const labels = own.labels || CALENDAR_LABELS[term] || own.values.map((_, i) => String(i));
    const every = labels.length > 12 ? Math.ceil(labels.length / 8) : 1;
    parts.push(part(CALENDAR_TITLES[term] || term, bars(own.values, labels, `Factor of the rate by ${term}`, { every }),
      element("p", { className: "caption", text: calendarCaption(own, labels) })));
  }
  $("model-parts").replaceChildren(...parts);
  const parameters = Object.entries(model.parameters || {});
  $("parameters").replaceChildren(...(parameters.length < 2 ? [] : parameters).map(([name, value]) => element("div", {},
    element("dt", { text: name }), element("dd", { text: typeof value === "number" ? number(value) : String(value) }))));
}

function offspring(kernel) {
  const all = Object.entries(kernel.offspring || {});
  if (!all.length || all.length > 4) return "";
  if (all.length === 1) return `It leads directly to ${number(all[0][1])} further events.`;
  const parts = all.map(([name, value], i) => (i === 0
    ? `an event of type ${name} leads to ${number(value)} further events` : `one of type ${name} to ${number(value)}`));
  return `Directly, ${parts.join(", ")}.`;
}

function calendarCaption(own, labels) {
  const most = own.values.indexOf(Math.max(...own.values));
  const least = own.ratio < 100 ? ` and ${number(own.ratio)} times the lowest` : "";
  return `Factor of the base rate. The highest, at ${labels[most]}, is ${number(own.values[most])} times the mean${least}.`;
}

function part(title, ...children) { return element("div", { className: "part" }, element("h3", { text: title }), ...children); }

// ---------------------------------------------------------------- live messages

function onMessage(name, content) {
  if (name === "events") {
    const events = Array.isArray(content) ? content : content.events || [];
    if (!state.times) return;
    const own = events.filter((event) => !state.entity || event.entity === state.entity);
    state.events.push(...own.map(tick));
    if (state.events.length > MOST_TICKS) state.events.splice(0, state.events.length - MOST_TICKS);
    if (own.length && state.rateChart) state.rateChart.setEvents(state.events);
    drawLatest(events[events.length - 1]);
    refreshHistory();
    refreshForecast();
    refreshEntities();
    refreshStatus();
  } else if (name === "alarm") {
    refreshAlarms();
  } else if (name === "status") {
    if (content && content.now !== undefined && state.times) {
      takeStatus(content);
      refreshHistory();
    } else {
      refreshStatus();
    }
  }
}

function onState(now) {
  const pill = $("connection");
  const was = state.connected;
  state.connected = now === "live";
  pill.dataset.state = now === "live" ? "live" : "lost";
  setText("connection", now === "live" ? "live" : now === "refused" ? "token needed" : "reconnecting");
  if (now === "refused") askForToken();
  if (now === "live" && !was) {
    refreshStatus();
    if (!state.times) return;
    refreshHistory();
    refreshAlarms();
    refreshEntities();
    refreshForecast();
    refreshModel();
  }
}

// ---------------------------------------------------------------- token and theme

function askForToken() {
  const dialog = $("token-dialog");
  $("token-button").hidden = false;
  if (dialog.open) return;
  setText("token-error", token() ? "The service refused the token." : "");
  dialog.showModal();
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  try { sessionStorage.setItem("fourpoint-token", $("token").value.trim()); } catch { /* kept nowhere */ }
  $("token").value = "";
  $("token-dialog").close();
  refreshStatus.now();
  live.retry();
});
$("token-cancel").addEventListener("click", () => $("token-dialog").close());
$("token-button").addEventListener("click", askForToken);
$("entity").addEventListener("change", (event) => choose(event.target.value));

const THEMES = ["system", "light", "dark"];

function theme() { return document.documentElement.dataset.theme || "system"; }

function redraw() {
  for (const chart of [state.rateChart, state.countChart]) if (chart) chart.build();
  drawHistory();
}

function drawThemeButton() {
  setText("theme-name", theme());
}

$("theme-button").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try { localStorage.setItem("fourpoint-theme", next); } catch { /* kept nowhere */ }
  drawThemeButton();
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
drawThemeButton();

const live = follow({ path: "/v1/live", headers, onMessage, onState });
refreshStatus();
// The stream brings events; time alone changes forecasts, the surprise of a silence and the verdict.
setInterval(() => {
  if (!state.connected || document.hidden) return;
  refreshStatus();
  refreshForecast();
  refreshEntities();
}, 5000);
// For a page that was asleep.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { live.retry(); refreshStatus(); refreshHistory(); refreshAlarms(); }
});

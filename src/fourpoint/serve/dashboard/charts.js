// The two charts over time, drawn by uPlot: rates with events and forecast, and counts per bin.

const uPlot = window.uPlot;
const LANE = 0.062; // height of a row of event ticks, as a share of the largest rate
const MOST_LANES = 6;

/** The present value of a CSS variable as a colour that a canvas understands. */
export function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

export function typeClass(index) { return `type-${Math.min(index, 7)}`; }

function withAlpha(value, alpha) {
  const parts = value.match(/[\d.]+/g);
  return parts ? `rgba(${parts[0]}, ${parts[1]}, ${parts[2]}, ${alpha})` : value;
}

function axes(times, { ySize = 46 } = {}) {
  const soft = colour("soft");
  const grid = { stroke: colour("grid"), width: 1 };
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const space = document.documentElement.clientWidth < 700 ? 78 : 92;
  const hours = (u, splits) => splits.map((t, i) => {
    const text = times.text(t, "hour");
    const before = i ? times.text(splits[i - 1], "hour") : "99:99";
    const isNewDay = text < before || (splits.length > 1 && splits[1] - splits[0] >= 86400);
    if (!isNewDay) return text;
    const [weekday, day, month] = times.text(t, "day").split(" ");
    return splits.length > 1 && splits[1] - splits[0] >= 86400
      ? `${weekday} ${day} ${month}` : `${text}\n${weekday} ${day} ${month}`;
  });
  return [
    {
      stroke: soft, grid: { ...grid, show: false }, ticks: { ...grid, size: 5 }, font, space, size: 46,
      ...(times.dated ? { values: hours } : {}),
    },
    {
      stroke: soft, grid, ticks: { show: false }, font, size: ySize, space: 34,
      values: (u, splits) => splits.map((v) => (v < 0 ? "" : v.toLocaleString("en", { maximumFractionDigits: 3 }))),
    },
  ];
}

function sizeOf(host) {
  return { width: Math.max(240, host.clientWidth), height: Math.max(140, host.clientHeight) };
}

function tzDate(times) {
  return (t) => uPlot.tzDate(new Date(t * 1000), times.zone || "UTC");
}

/** Keeps a chart as wide as its container. */
function watchSize(host, chart) {
  const observer = new ResizeObserver(() => chart().setSize(sizeOf(host)));
  observer.observe(host);
  return observer;
}

export class RateChart {
  constructor(host, times, marks, onCursor) {
    this.host = host;
    this.times = times;
    this.marks = marks;
    this.onCursor = onCursor;
    this.events = [];
    this.now = null;
    this.range = [0, 1];
    this.top = 1;
    this.build();
    this.observer = watchSize(host, () => this.plot);
    this.listening = new AbortController();
    const { signal } = this.listening;
    host.addEventListener("keydown", (event) => this.onKey(event), { signal });
    host.addEventListener("blur", () => this.leave(), { signal });
  }

  close() { this.observer.disconnect(); this.listening.abort(); this.plot.destroy(); }

  get lanes() { return Math.min(this.marks.length, MOST_LANES); }

  build() {
    const { times } = this;
    this.colours = this.marks.map((_, i) => colour(`type-${Math.min(i, 7)}`));
    this.ink = colour("ink");
    this.soft = colour("soft");
    this.grid = colour("grid");
    const many = this.marks.length > 1;
    // The forecast is that of all types together, and so has none of their colours.
    const mean = many ? this.ink : colour("accent");
    const band = many ? withAlpha(this.ink, 0.1) : colour("band");
    const series = [{}];
    for (let i = 0; i < this.marks.length; i += 1) {
      series.push({ stroke: this.colours[i], width: 1.8, points: { show: false }, spanGaps: false });
    }
    series.push({
      stroke: withAlpha(this.ink, many ? 0.6 : 0), width: 1.2, points: { show: false }, fill: withAlpha(this.ink, 0.035),
    }); // total
    const edge = { stroke: "transparent", width: 0, points: { show: false } };
    series.push(edge, { ...edge }); // high, low
    series.push({ stroke: mean, width: 1.6, dash: [5, 4], points: { show: false } }); // mean
    const M = this.marks.length;
    const options = {
      ...sizeOf(this.host),
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: {
        y: false, drag: { setScale: false, x: false, y: false },
        points: { size: 6, width: 1.5 }, focus: { prox: -1 },
      },
      tzDate: times.dated ? tzDate(times) : undefined,
      scales: {
        x: { time: times.dated, range: () => this.range },
        y: { range: () => [-(this.lanes + 0.6) * LANE * this.top, this.top * 1.06] },
      },
      series,
      bands: [{ series: [M + 2, M + 3], fill: band }],
      axes: axes(times),
      hooks: {
        draw: [(u) => this.drawEvents(u), (u) => this.drawNow(u)],
        setCursor: [(u) => this.onCursor(u.cursor.idx)],
      },
    };
    const data = this.data || this.empty();
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(options, data, this.host);
  }

  empty() { return [[], ...this.marks.map(() => []), [], [], [], []]; }

  /** past: {times, rates}, ahead: {times, mean, low, high} in rates, both in axis units. */
  set({ past, ahead, range, now }) {
    const P = past.times.length;
    const ts = past.times.concat(ahead.times);
    const nothing = new Array(ahead.times.length).fill(null);
    const none = new Array(P).fill(null);
    const total = past.times.map((_, i) => past.rates.reduce((sum, own) => sum + (own[i] ?? 0), 0));
    const joins = P > 0 && ahead.times.length > 0;
    // The forecast begins at the present rate.
    const last = joins ? total[P - 1] : null;
    const before = joins ? none.slice(0, -1).concat([last]) : none;
    this.data = [
      ts, ...past.rates.map((own) => own.concat(nothing)), total.concat(nothing),
      before.concat(ahead.high), before.concat(ahead.low), before.concat(ahead.mean),
    ];
    this.range = range;
    this.now = now;
    let top = 0;
    for (const own of [total, ahead.high]) for (const v of own) if (Number.isFinite(v) && v > top) top = v;
    // The scale follows slowly downwards, so that the picture stays calm.
    const wanted = top > 0 ? top : 1;
    this.top = wanted > this.top || this.top > 2 * wanted || !this.seen ? wanted : this.top;
    this.seen = true;
    this.plot.setData(this.data);
  }

  setEvents(events) { this.events = events; this.plot.redraw(false, false); }

  drawEvents(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.setLineDash([]);
    const height = Math.abs(u.valToPos(-LANE * this.top, "y", true) - u.valToPos(0, "y", true));
    const zero = u.valToPos(0, "y", true);
    ctx.strokeStyle = this.soft;
    ctx.globalAlpha = 0.45;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(bbox.left, Math.round(zero) + 0.5);
    ctx.lineTo(bbox.left + bbox.width, Math.round(zero) + 0.5);
    ctx.stroke();
    ctx.lineWidth = Math.max(1, 1.4 * devicePixelRatio);
    ctx.globalAlpha = this.events.length > 1500 ? 0.35 : 0.8;
    for (let lane = 0; lane < this.lanes; lane += 1) {
      ctx.strokeStyle = this.colours[lane];
      ctx.beginPath();
      const top = zero + (lane + 0.32) * height;
      for (const event of this.events) {
        if (Math.min(event.lane, this.lanes - 1) !== lane) continue;
        const x = u.valToPos(event.x, "x", true);
        ctx.moveTo(x, top);
        ctx.lineTo(x, top + height * 0.76);
      }
      ctx.stroke();
    }
    ctx.restore();
  }

  drawNow(u) {
    if (this.now === null) return;
    const { ctx, bbox } = u;
    const x = Math.round(u.valToPos(this.now, "x", true)) + 0.5;
    ctx.save();
    ctx.setLineDash([]);
    ctx.strokeStyle = this.ink;
    ctx.globalAlpha = 0.55;
    ctx.lineWidth = Math.max(1, devicePixelRatio);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 0.9;
    ctx.fillStyle = this.soft;
    ctx.font = `${12 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.fillText("now", x + 5 * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
    ctx.restore();
  }

  onKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    const count = this.data ? this.data[0].length : 0;
    if (event.key === "Escape") { this.leave(); return; }
    if (!count || (step === undefined && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    // Points outside the range cannot hold the cursor: the first may have left it since it came.
    const [first, last] = this.plot.series[0].idxs ?? [0, count - 1];
    const at = this.plot.cursor.idx ?? last;
    let index = at + (step ?? 0);
    if (event.key === "Home") index = first;
    if (event.key === "End") index = last;
    index = Math.max(first, Math.min(last, index));
    const left = Math.max(0, this.plot.valToPos(this.data[0][index], "x"));
    this.plot.setCursor({ left, top: 10 });
    this.onCursor(index, true);
  }

  leave() { this.plot.setCursor({ left: -10, top: -10 }); this.onCursor(null); }
}

export class CountChart {
  constructor(host, times) {
    this.host = host;
    this.times = times;
    this.bins = [];
    this.observed = [];
    this.expected = [];
    this.range = [0, 1];
    this.build();
    this.observer = watchSize(host, () => this.plot);
  }

  close() { this.observer.disconnect(); this.plot.destroy(); }

  build() {
    this.bar = colour("bar");
    this.ink = colour("ink");
    const options = {
      ...sizeOf(this.host),
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      tzDate: this.times.dated ? tzDate(this.times) : undefined,
      scales: {
        x: { time: this.times.dated, range: () => this.range },
        y: { range: () => [0, this.top()] },
      },
      series: [{}, { stroke: "transparent", points: { show: false } }],
      axes: axes(this.times),
      hooks: { drawAxes: [(u) => this.draw(u)] },
    };
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(options, this.data(), this.host);
  }

  top() {
    let most = 1;
    for (const values of [this.observed, this.expected]) for (const v of values) if (v > most) most = v;
    return most * 1.12;
  }

  data() {
    if (this.bins.length < 2) return [[], []];
    return [this.bins.slice(0, -1), this.observed];
  }

  set({ bins, observed, expected }) {
    this.bins = bins;
    this.observed = observed;
    this.expected = expected;
    if (bins.length > 1) this.range = [bins[0], bins[bins.length - 1]];
    this.plot.setData(this.data());
  }

  draw(u) {
    const { ctx, bbox } = u;
    const zero = u.valToPos(0, "y", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = this.bar;
    const edges = this.bins.map((t) => u.valToPos(t, "x", true));
    const space = Math.min(3 * devicePixelRatio, (edges[1] - edges[0]) * 0.12);
    this.observed.forEach((value, i) => {
      if (!value) return;
      const y = u.valToPos(value, "y", true);
      ctx.beginPath();
      ctx.roundRect(edges[i] + space / 2, y, edges[i + 1] - edges[i] - space, zero - y, [3 * devicePixelRatio, 3 * devicePixelRatio, 0, 0]);
      ctx.fill();
    });
    ctx.strokeStyle = this.ink;
    ctx.lineWidth = 1.8 * devicePixelRatio;
    ctx.beginPath();
    this.expected.forEach((value, i) => {
      if (value === null || value === undefined) return;
      const y = u.valToPos(value, "y", true);
      ctx.moveTo(edges[i] + space / 2, y);
      ctx.lineTo(edges[i + 1] - space / 2, y);
    });
    ctx.stroke();
    ctx.restore();
  }
}

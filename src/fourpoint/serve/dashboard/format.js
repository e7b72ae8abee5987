// Numbers, times and units as text. Times are seconds since 1970 where the model has dates, and
// plain numbers in the model's unit otherwise; `Times` converts what the service sends.

const SHORT = { seconds: "s", minutes: "min", hours: "h", days: "d", weeks: "wk" };
const SECONDS = { seconds: 1, minutes: 60, hours: 3600, days: 86400, weeks: 604800 };

/** A number with about three digits, without an exponent where that is readable. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(1);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** "p = 0.03", or a bound where it is very small. */
export function pValue(value) {
  return value < 0.0001 ? "p < 0.0001" : `p = ${number(value)}`;
}

/** A rate: two decimals, so that columns line up, or three digits where it is small. */
export function rate(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return value >= 0.01 || value === 0 ? value.toFixed(2) : value.toPrecision(1);
}

/** A whole number, with separators of thousands. */
export function count(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Math.round(value).toLocaleString("en");
}

/** An expected number of events: one digit below a hundred. */
export function expected(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
}

export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  if (share > 0.995 && share < 1) return "> 99%";
  if (share > 0 && share < 0.005) return "< 1%";
  return `${Math.round(100 * share)}%`;
}

/** "1 hour", "3 days": a length of time given in hours, or in the model's unit without dates. */
export function span(hours, unit) {
  if (!(unit in SECONDS)) return `${number(hours)} ${unit || "units"}`;
  const seconds = hours * 3600;
  for (const [size, name] of [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]]) {
    if (seconds >= size * (name === "day" ? 2 : 1) || name === "second") {
      const many = seconds / size;
      return `${number(many)} ${name}${Math.abs(many - 1) < 1e-9 ? "" : "s"}`;
    }
  }
  return "";
}

export class Times {
  constructor(status) {
    this.dated = Boolean(status.dated);
    this.unit = status.unit || "";
    this.zone = status.timezone || undefined;
    const zone = { timeZone: this.zone };
    try { new Intl.DateTimeFormat("en-GB", zone); } catch { zone.timeZone = "UTC"; this.zone = "UTC"; }
    this.hour = new Intl.DateTimeFormat("en-GB", { ...zone, hour: "2-digit", minute: "2-digit" });
    this.day = new Intl.DateTimeFormat("en-GB", {
      ...zone, weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit",
    });
    this.full = new Intl.DateTimeFormat("en-GB", {
      ...zone, weekday: "short", day: "numeric", month: "short", year: "numeric",
      hour: "2-digit", minute: "2-digit",
    });
    // American English knows the abbreviations of more zones.
    this.zoneName = new Intl.DateTimeFormat("en-US", { ...zone, timeZoneName: "short" });
  }

  /** What the service sends, as seconds since 1970 or as a number of units. */
  parse(value) {
    if (typeof value === "number") return value;
    const milliseconds = Date.parse(value);
    return Number.isNaN(milliseconds) ? Number(value) : milliseconds / 1000;
  }

  /** Units of the axis in an hour; without a known unit an "hour" is one unit. */
  get perHour() {
    if (this.dated) return 3600;
    return this.unit in SECONDS ? 3600 / SECONDS[this.unit] : 1;
  }


  text(value, style = "day") {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!this.dated) return `${number(value)} ${SHORT[this.unit] || this.unit}`.trim();
    const date = new Date(value * 1000);
    const text = this[style].format(date).replaceAll(",", "");
    if (style !== "full") return text;
    const zone = this.zoneName.formatToParts(date).find((part) => part.type === "timeZoneName");
    return zone ? `${text} ${zone.value}` : text;
  }

  /** "12 min ago", of two times of the axis. */
  ago(value, now) {
    if (!this.dated && !(this.unit in SECONDS)) return `${number(now - value)} ago`;
    const seconds = (now - value) / this.perHour * 3600;
    if (!Number.isFinite(seconds)) return "–";
    if (seconds < 1) return "just now";
    if (seconds < 90) return `${Math.round(seconds)} s ago`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
    if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
    return `${Math.round(seconds / 86400)} days ago`;
  }

  get perUnit() { return `per ${{ seconds: "second", minutes: "minute", hours: "hour", days: "day", weeks: "week" }[this.unit] || "unit"}`; }
}

// The newest steps as bars: where the time of each went.

const PARTS = [
  ["host_gap_us", ".gap"],
  ["host_us", ".host"],
  ["device_us", ".device"],
  ["readback_us", ".readback"],
];
const BAR = 7;
const MARKS = 14; // room for the marks below the bars

export class Timeline {
  /** `legend` has an element per part, whose mark has the part's colour. */
  constructor(canvas, legend) {
    this.canvas = canvas;
    this.legend = legend;
  }

  /** Draw as many of the newest steps (oldest first) as have room. */
  draw(steps) {
    const { context, width, height } = this.#prepare();
    const shown = steps.slice(-Math.floor(width / BAR));
    const top = ceiling(shown);
    const colours = PARTS.map(([, name]) =>
      getComputedStyle(this.legend.querySelector(name), "::before").color);
    const text = getComputedStyle(this.canvas).color;
    const plot = height - MARKS;
    context.fillStyle = text;
    for (const part of shown.length ? [0, 0.5] : []) {
      const y = Math.round(part * plot);
      context.globalAlpha = 0.2;
      context.fillRect(0, y, width, 1);
      context.globalAlpha = 0.7;
      context.fillText(`${((1 - part) * top) / 1000} ms`, 0, y + 11);
    }
    context.globalAlpha = 1;
    shown.forEach((step, index) => {
      const x = width - (shown.length - index) * BAR;
      let y = plot;
      PARTS.forEach(([field], part) => {
        const tall = Math.min((step[field] / top) * plot, y);
        context.fillStyle = colours[part];
        context.fillRect(x, y - tall, BAR - 1.5, tall);
        y -= tall;
      });
      const mark = step.error ? "✕" : step.phase === "prefill" ? "▲" : "";
      context.fillStyle = text;
      context.fillText(mark, x - 1, height - 2);
    });
  }

  #prepare() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "10px system-ui";
    return { context, width, height };
  }
}

/** A round number of microseconds above all but the tallest twentieth. */
function ceiling(steps) {
  const sums = steps
    .map((step) => PARTS.reduce((sum, [field]) => sum + step[field], 0))
    .sort((a, b) => a - b);
  const tall = Math.max(sums[Math.floor(0.95 * (sums.length - 1))] ?? 0, 1);
  const power = 10 ** Math.floor(Math.log10(tall));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= tall);
}

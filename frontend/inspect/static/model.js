// What is known of one device service, from the messages of the server.

const KEPT_STEPS = 500;
const RATE_SECONDS = 3;

export class Model {
  constructor() {
    this.state = null;
    this.steps = []; // oldest first
    this.newestAt = 0; // when the newest step came, by our clock
    this.lost = 0;
    this.trouble = "connecting";
    this.lastShare = new Map(); // request id -> its share of its newest step
  }

  /** Take a message; its fields are all optional. */
  take(message) {
    if (message.trouble !== undefined) this.trouble = message.trouble;
    if (message.lost !== undefined) this.lost += message.lost;
    if (message.state !== undefined) this.#takeState(message.state);
    if (message.steps !== undefined) this.#takeSteps(message.steps);
  }

  #takeState(state) {
    if (this.state !== null && this.state.instance_id !== state.instance_id) {
      this.steps = [];
      this.lastShare.clear();
      this.lost = 0;
    }
    this.state = state;
    const live = new Set(state.lanes.flatMap((lane) => lane.rows.map((row) => row.request_id)));
    for (const id of this.lastShare.keys()) if (!live.has(id)) this.lastShare.delete(id);
  }

  #takeSteps(steps) {
    // A stream that was opened anew begins with steps that are here already.
    const newest = this.steps.at(-1)?.number ?? 0;
    const added = steps.filter((step) => step.number > newest);
    for (const step of added) {
      for (const lane of step.lanes) {
        for (const [, id, , start, tokens, chunk] of lane.rows) {
          this.lastShare.set(id, { phase: step.phase, start, tokens, chunk });
        }
      }
    }
    if (added.length > 0) this.newestAt = performance.now();
    this.steps = this.steps.concat(added).slice(-KEPT_STEPS);
  }

  /** What a row does, as of its newest step: a letter, a phase and words. */
  doing(requestId) {
    const share = this.lastShare.get(requestId);
    if (share === undefined) return { letter: "·", phase: "", words: "" };
    if (share.phase === "decode") return { letter: "D", phase: "decode", words: "decode" };
    const range = `${share.start}–${share.start + share.tokens}`;
    const words = share.chunk ? `prefill chunk ${range}` : `prefill ${range}`;
    return { letter: "P", phase: "prefill", words };
  }

  /** Rates and shares over the last seconds, by the device service's clock. */
  rates() {
    const since = (performance.now() - this.newestAt) / 1000;
    const now = (this.steps.at(-1)?.unix_seconds ?? 0) + since;
    const recent = this.steps.filter((step) => step.unix_seconds > now - RATE_SECONDS);
    const share = (wanted) =>
      recent.length === 0 ? null : recent.filter(wanted).length / recent.length;
    const produced = recent.reduce((sum, step) => sum + step.produced_tokens, 0);
    return {
      steps: recent.length / RATE_SECONDS,
      tokens: produced / RATE_SECONDS,
      decode: share((step) => step.phase === "decode"),
      overlapped: share((step) => step.overlapped),
      device: share((step) => step.sampling_site === "device"),
    };
  }
}

/** The steps, rows and waiting requests that a filter lets through. */
export class Filter {
  constructor(lane, phase, request) {
    this.lane = lane === "" ? null : Number(lane);
    this.phase = phase;
    this.request = request.trim();
  }

  lets(step) {
    if (this.phase !== "" && step.phase !== this.phase) return false;
    const lanes = step.lanes.filter((lane) => this.letsLane(lane.lane));
    if (this.lane !== null && !lanes.some((lane) => lane.rows.length > 0)) return false;
    return this.request === "" ||
      lanes.some((lane) => lane.rows.some(([, id, external]) => this.letsRequest(id, external)));
  }

  letsLane(lane) {
    return this.lane === null || lane === this.lane;
  }

  letsRequest(...ids) {
    return this.request === "" || ids.some((id) => id.includes(this.request));
  }
}

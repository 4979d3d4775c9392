'use strict';
// A figure of the last five minutes as a small chart.

const SPARK_HEIGHT = 32;
const SPARK_GAP_S = 12; // the service itself looks every five seconds: what is longer breaks the line

class Sparkline {
  constructor() {
    this.area = svgEl('path', { class: 'cl-spark-area' });
    this.line = svgEl('path', { class: 'cl-spark-line' });
    const viewBox = `0 0 ${HISTORY_S} ${SPARK_HEIGHT}`;
    this.root = svgEl('svg', { class: 'cl-spark', viewBox, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, this.area, this.line);
  }

  /** `series`: [{at, value}], null where it is not known; the axis ends at `now`, and at `top` at least. */
  show(series, now, top) {
    const most = Math.max(top, ...series.map(({ value }) => value ?? 0));
    const x = (at) => (HISTORY_S - (now - at)).toFixed(1);
    const y = (value) => (SPARK_HEIGHT - 1.5 - (value / most) * (SPARK_HEIGHT - 4)).toFixed(1);
    let line = '';
    let area = '';
    for (const run of Sparkline.#runs(series)) {
      const points = run.map(({ at, value }) => `${x(at)} ${y(value)}`);
      line += `M${points.join('L')}`;
      area += `M${x(run[0].at)} ${SPARK_HEIGHT}L${points.join('L')}L${x(run.at(-1).at)} ${SPARK_HEIGHT}Z`;
    }
    this.line.setAttribute('d', line);
    this.area.setAttribute('d', area);
  }

  static #runs(series) {
    const runs = [];
    let last = null;
    for (const point of series) {
      if (point.value === null) {
        last = null;
        continue;
      }
      if (!last || point.at - last.at > SPARK_GAP_S) runs.push([]);
      runs.at(-1).push(point);
      last = point;
    }
    return runs;
  }
}

// Tables that change in place: what stays the same is not touched.

/** A table's body. A column is { text, kind?, why?, draw? }: `text(item)` is what
 * the cell says, `why(item)` stands after it in grey, `draw(cell, item)` replaces
 * both; `kind` is the cell's class.
 */
export class Table {
  constructor(table, columns, keyOf, classOf = () => "") {
    this.body = table.tBodies[0];
    this.columns = columns;
    this.keyOf = keyOf;
    this.classOf = classOf;
    this.rows = new Map();
  }

  show(items) {
    const wanted = new Set(items.map(this.keyOf));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    let place = this.body.firstElementChild;
    for (const item of items) {
      const key = this.keyOf(item);
      let row = this.rows.get(key);
      if (row === undefined) {
        row = this.#newRow();
        this.rows.set(key, row);
      }
      if (row === place) place = row.nextElementSibling;
      else this.body.insertBefore(row, place);
      this.#fill(row, item);
    }
  }

  #newRow() {
    const row = document.createElement("tr");
    for (const column of this.columns) {
      const cell = row.insertCell();
      cell.className = column.kind ?? "";
      if (column.why !== undefined) {
        const why = document.createElement("span");
        why.className = "why";
        cell.append(document.createElement("span"), why);
      }
    }
    return row;
  }

  #fill(row, item) {
    setIfNew(row, "className", this.classOf(item));
    this.columns.forEach((column, index) => {
      const cell = row.cells[index];
      if (column.draw !== undefined) return column.draw(cell, item);
      const text = String(column.text(item));
      if (column.kind?.match(/\b(id|notes)\b/)) setIfNew(cell, "title", text);
      if (column.why === undefined) return setIfNew(cell, "textContent", text);
      setIfNew(cell.firstChild, "textContent", text);
      setIfNew(cell.lastChild, "textContent", column.why(item));
    });
  }
}

export function setIfNew(node, property, value) {
  if (node[property] !== value) node[property] = value;
}

/** A <meter> of `used` out of `total`, made once per cell. */
export function drawMeter(cell, used, total, label) {
  const meter = cell.firstElementChild ?? cell.appendChild(document.createElement("meter"));
  meter.max = Math.max(total, 1);
  meter.value = used;
  meter.title = label;
  meter.setAttribute("aria-label", label);
}

/** One letter per row of a lane: [{ letter, phase, title }]. */
export function drawCells(cell, rows, label) {
  const signature = rows.map((row) => row.letter + row.title).join("|");
  if (cell.dataset.drawn === signature) return;
  cell.dataset.drawn = signature;
  const box = document.createElement("span");
  box.className = "cells";
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", label);
  for (const { letter, phase, title } of rows) {
    const span = document.createElement("span");
    span.className = phase;
    span.title = title;
    span.textContent = letter;
    box.append(span);
  }
  cell.replaceChildren(box);
}

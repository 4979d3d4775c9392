'use strict';
// Pictures that go with a message: pasted, dropped or chosen, and made small enough to be kept.

const MAX_PICTURES = 8;
const LONGEST_SIDE = 1024; // px
const PICTURE_QUALITY = 0.85; // of a JPEG

/** A picture as a data: URL. Throws Error where the browser cannot read it. */
async function pictureOf(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = el('canvas', { width, height });
  const context = canvas.getContext('2d');
  context.fillStyle = 'white'; // where it is transparent
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  return canvas.toDataURL('image/jpeg', PICTURE_QUALITY);
}

function isPicture(value) {
  return typeof value === 'string' && /^data:image\/\w+;base64,/.test(value);
}

function pictureElement(picture) {
  return el('img', { class: 'picture', src: picture, alt: 'Attached picture' });
}

/** Those of the message that is being written. */
class PictureTray {
  constructor(zone, onChange) {
    this.pictures = [];
    this.onChange = onChange;
    this.list = byId('picture-tray');
    this.file = byId('picture-file');
    byId('picture-button').addEventListener('click', () => this.file.click());
    this.file.addEventListener('change', () => this.#add(this.file.files).then(() => (this.file.value = '')));
    zone.addEventListener('paste', (event) => this.#takeFrom(event, event.clipboardData));
    zone.addEventListener('dragover', (event) => event.preventDefault());
    zone.addEventListener('drop', (event) => this.#takeFrom(event, event.dataTransfer));
  }

  clear() {
    this.#show([]);
  }

  #takeFrom(event, { files }) {
    if (!files.length) return; // text is the field's business
    event.preventDefault();
    this.#add(files);
  }

  async #add(files) {
    for (const file of [...files]) {
      if (this.pictures.length === MAX_PICTURES) return toast(`A message takes ${MAX_PICTURES} pictures.`);
      try {
        this.#show([...this.pictures, await pictureOf(file)]);
      } catch {
        toast(`${file.name} is not a picture that this browser can read.`);
      }
    }
  }

  #show(pictures) {
    this.pictures = pictures;
    this.list.hidden = !pictures.length;
    this.list.replaceChildren(...pictures.map((picture, place) => this.#entry(picture, place)));
    this.onChange();
  }

  #entry(picture, place) {
    const remove = iconButton('delete', 'Remove this picture', () => this.#show(this.pictures.toSpliced(place, 1)));
    return el('li', {}, pictureElement(picture), remove);
  }
}

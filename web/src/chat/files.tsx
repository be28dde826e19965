/** Attachments: added by a drop, a paste or a file dialog, and displayed. */

import type { JSX } from "preact";
import { Icon } from "../shell/icons.tsx";
import { attach, bytesIn, pending } from "../store/composer-state.ts";
import { agent, toast } from "../store/state.ts";
import type { Attachment, Binary } from "../wire/types.ts";
import { sizeOf } from "./descriptions.ts";

export const MAX_FILE_SIZE = 5 * 1_048_576;
/** A request has at most 32 MiB, and base64 adds a third. */
export const MAX_TOTAL_SIZE = 20 * 1_048_576;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const PLAIN = "text/plain; charset=utf-8";

export const isPicture = (type: string): boolean => PICTURES.includes(type);

/** Returns the MIME type that is sent to a model; null for an unsupported type. */
export function kindOf(type: string, start: Uint8Array): string | null {
  if (isPicture(type) || type === "application/pdf") return type;
  return start.subarray(0, 8_192).includes(0) ? null : PLAIN;
}

export function base64(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

export function textFile(text: string, name: string): Attachment {
  return { content: base64(new TextEncoder().encode(text)), file_path: name, file_name: name, mime_type: PLAIN };
}

/** Attaches files; reports the reason for each that cannot be attached. */
export async function attachFiles(files: Iterable<File>): Promise<void> {
  for (const file of files) {
    const together = pending.value.reduce((sum, one) => sum + one.size, 0);
    if (file.size > MAX_FILE_SIZE) {
      toast("error", `${file.name} has ${sizeOf(file.size)}; an attachment may have at most 5 MB. Give its path in the prompt instead.`);
      continue;
    }
    if (together + file.size > MAX_TOTAL_SIZE) {
      toast("error", "Attachments may have at most 20 MB in total. Send some of them with the next prompt.");
      return;
    }
    const bytes = await read(file);
    if (bytes === null) continue;
    const kind = kindOf(file.type, bytes);
    if (kind === null) {
      toast("error", `${file.name} is neither text nor an image: no model can read it.`);
      continue;
    }
    const name = file.name || (isPicture(kind) ? `image-${pending.value.length + 1}.${kind.slice(6)}` : "file.txt");
    attach({ content: base64(bytes), file_path: name, file_name: name, mime_type: kind });
    if (isPicture(kind) && agent.value !== null && agent.value.model.supports_attachments === false) {
      toast("warning", "The selected model does not accept images. Choose another one for this prompt.");
    }
  }
}

async function read(file: File): Promise<Uint8Array | null> {
  try {
    return new Uint8Array(await file.arrayBuffer());
  } catch {
    toast("error", `${file.name || "That"} cannot be read. A directory cannot be attached: give its path in the prompt.`);
    return null;
  }
}

export function Picture({ type, data, name }: { type: string; data: string; name: string }): JSX.Element {
  return <img src={`data:${type};base64,${data}`} alt={name} loading="lazy" />;
}

export function FilePart({ file }: { file: Binary }): JSX.Element {
  const name = file.Path.slice(file.Path.lastIndexOf("/") + 1) || "file";
  return (
    <li class="file">
      {isPicture(file.MIMEType) ? <Picture type={file.MIMEType} data={file.Data} name={name} /> : <Icon name="file" small />}
      <span class="clip">{name}</span>
      <span class="faint">{sizeOf(bytesIn(file.Data))}</span>
    </li>
  );
}

import { render } from "preact";
import { App } from "./shell/app.tsx";
import "./chat/commands.ts";
import { start } from "./store.ts";
import "./styles/index.css";

// The server is asked first: it answers while the page is drawn.
void start();
const place = document.getElementById("app");
if (place) render(<App />, place);

import { render } from "preact";
import "./chat/commands.ts";
import { App } from "./shell/app.tsx";
import { start } from "./store.ts";
import "./styles/index.css";

// The server is asked first: it answers while the page is drawn.
void start();
const place = document.getElementById("app");
if (place) render(<App />, place);

import { useEffect, useState } from "preact/hooks";

/** The current time, updated periodically while something is active. */
export function useNow(isGoing: boolean, every = 1_000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    setNow(Date.now());
    if (!isGoing) return undefined;
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [isGoing, every]);
  return isGoing ? Math.max(now, Date.now()) : now;
}

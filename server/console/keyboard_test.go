package console_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Each stop of the keyboard has an outline and is not covered, on wide, middle and narrow screens, and with forced colours.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	c := openChromium(t, s.base)
	for _, path := range []string{"/console", "/console/resources/Patient", "/console/Patient/a/view", "/console/Patient/a/history", "/console/views", "/console/settings"} {
		for _, look := range []struct {
			width  int64
			colors string
		}{{1280, "none"}, {800, "none"}, {390, "none"}, {1280, "active"}} {
			if _, err := chromedp.Call(c.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "forced-colors", Value: look.colors}, {Name: "prefers-reduced-motion", Value: "reduce"}}}); err != nil {
				t.Fatal(err)
			}
			c.run(chromedp.EmulateViewport(look.width, 600))
			c.open(path)
			seen := 0
			for range 60 {
				c.run(chromedp.KeyEvent(kb.Tab))
				stop := script[string](c, `(() => {
					const e = document.activeElement;
					if (!e || e == document.body) return "end";
					const words = e.outerHTML.slice(0, 120), style = getComputedStyle(e), box = e.getBoundingClientRect();
					if (style.outlineStyle == "none" || parseFloat(style.outlineWidth) < 2) return "no outline: " + words;
					const x = Math.min(Math.max(box.left + Math.min(box.width, 40) / 2, 0), innerWidth - 1), y = Math.min(Math.max(box.top + Math.min(box.height, 40) / 2, 0), innerHeight - 1);
					const top = document.elementFromPoint(x, y);
					if (!top || !e.contains(top) && !top.contains(e) && !(e.labels && [...e.labels].some(l => l.contains(top)))) return "covered by " + (top ? top.outerHTML.slice(0, 80) : "nothing") + ": " + words;
					if (top != e && top.contains(e) && top.closest(".banner") && !e.closest(".banner")) return "covered by the banner: " + words;
					return "";
				})()`)
				if stop == "end" {
					break
				}
				if seen++; stop != "" {
					t.Errorf("%s at %d pixels, forced colours %s: stop %d: %s", path, look.width, look.colors, seen, stop)
					break
				}
			}
			if seen < 10 {
				t.Errorf("%s at %d pixels has %d stops", path, look.width, seen)
			}
		}
	}
}

// Writes appear among the live events while the page is open; without script the newest are on it.
func TestLiveEvents(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.put("Patient/early", `{"resourceType":"Patient","id":"early"}`)
	c := openChromium(t, s.base)
	c.open("/console/live")
	c.must("log", "Events")
	if text := c.text("[role=log]"); !strings.Contains(text, "Patient/early") {
		t.Errorf("the log is %q", text)
	}
	s.put("Patient/late", `{"resourceType":"Patient","id":"late"}`)
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(c.text("[role=log]"), "Patient/late"); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log is %q", c.text("[role=log]"))
		}
	}
	c.quiet("live events")
	for i := range 60 {
		s.put(fmt.Sprintf("Patient/n%d", i), fmt.Sprintf(`{"resourceType":"Patient","id":"n%d"}`, i))
	}
	page := s.visitor().get("/console/live").want(http.StatusOK)
	if n := len(regexp.MustCompile(`<div>\d{4}-`).FindAllString(page.body, -1)); n != 50 {
		t.Errorf("the page has %d events, not 50", n)
	}
}

// A live view ends with the session, and does not keep it open.
func TestLiveEventsEndWithTheSession(t *testing.T) {
	t.Parallel()
	s, _ := signedUp(t)
	v := s.visitor()
	v.signIn("admin", "/console").want(200)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/console/live/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := v.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if got := stream.Header.Get("Content-Type"); stream.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("the stream: %d %s", stream.StatusCode, got)
	}
	ended := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(stream.Body) // its end is awaited
		ended <- string(b)
	}()
	v.post("/console/sign-out", url.Values{}).want(http.StatusSeeOther)
	select {
	case text := <-ended:
		if !strings.HasSuffix(text, "event: end\ndata: end\n\n") {
			t.Errorf("the stream ends with %q", text)
		}
	case <-time.After(10 * time.Second):
		t.Error("a stream outlives its session")
	}
	if p := v.get("/console/live/events"); p.status != http.StatusSeeOther {
		t.Errorf("a stream without a session: %d", p.status)
	}
}

package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// listeningPage hears of Patients by a browser's own EventSource and WebSocket.
const listeningPage = `<!doctype html><meta charset="utf-8"><title>listening</title><script>
window.ready = []; window.got = [];
const source = new EventSource("/fhir/Patient/$events");
source.onopen = () => ready.push("sse");
source.addEventListener("patient-created", (e) => got.push("sse " + JSON.parse(e.data).resourceId));
const socket = new WebSocket("ws://" + location.host + "/notifications/ws");
socket.onopen = () => socket.send(JSON.stringify({type: "subscribe", resourceType: "Patient", events: ["create"]}));
socket.onmessage = (e) => {
  const m = JSON.parse(e.data);
  if (m.type === "subscribed") ready.push("ws");
  if (m.event) got.push("ws " + m.resourceId);
};
socket.onclose = (e) => got.push("closed");
</script>`

// Contract, Notifications 5 and 6: a browser's native WebSocket and EventSource, through a proxy. A
// stream that is cut comes back by itself where it was.
func TestBrowserListens(t *testing.T) {
	t.Parallel()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("no Chromium on this machine: apt-get install chromium")
	}
	s := start(t)
	target, err := url.Parse(s.server())
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/page" {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, listeningPage)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	t.Cleanup(proxy.CloseClientConnections)

	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(time.Minute),
		chromedp.DisableGPU, chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("no-pings", true), chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox refuses root
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended
		closeTab()
	})
	if err := chromedp.Do(ctx, chromedp.Navigate(proxy.URL+"/page")); err != nil {
		t.Fatal(err)
	}
	// has waits until a list of the page has all of these, and returns it.
	has := func(list string, want ...string) []string {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			text, err := chromedp.Run(ctx, chromedp.Evaluate[string](list+`.join("\n")`))
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Split(text, "\n")
			if !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(got, w) }) {
				return got
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s is %q, want %q", list, got, want)
			}
		}
	}
	has("ready", "sse", "ws")
	first := s.do("POST", "/Patient", patient("first")).want(201).str("id")
	has("got", "sse "+first, "ws "+first)
	proxy.CloseClientConnections() // of the stream; a WebSocket is the proxy's no more
	second := s.do("POST", "/Patient", patient("second")).want(201).str("id")
	has("got", "sse "+second)
	third := s.do("POST", "/Patient", patient("third")).want(201).str("id")
	got := has("got", "sse "+third)
	for _, id := range []string{first, second, third} {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(g string) bool { return g != "sse "+id })); n != 1 {
			t.Errorf("the stream told %d times of %s: %q", n, id, got)
		}
	}
}

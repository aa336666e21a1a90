package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
)

// appWorkload compares operations of Apps with plain reads of the same patients: a small script, and a service on this
// machine that does nothing. Contract: Apps, section 7: a script takes at most 150 us more than a read at the median and
// reaches 3,000 a second on two processors, a service takes 100 us more than its own time. The tool measures that time
// itself, with the requests that the server has sent, by the same HTTP client.
var appWorkload = apps("app", "plain reads of patients beside operations of Apps: a small script, and an HTTP service that does nothing, called by the server and by this tool", 0, appOperation)

// appScriptWorkload is the script of appWorkload alone.
var appScriptWorkload = apps("app-script", "the small script of app alone", 0, func(*rand.Rand) (kind, path string) { return "script", "/$bench-script" })

// appsWorkload is appScriptWorkload among 1,000 active Apps: routing costs the same as with one.
var appsWorkload = apps("apps", "as app-script, with 1,000 active Apps", 1000, func(*rand.Rand) (kind, path string) { return "script", "/$bench-script" })

// benchApp is an App with an operation for reading.
func benchApp(id, name, handler string) []byte {
	return fmt.Appendf(nil, `{"resourceType":"App","id":%q,"name":%q,"status":"active","version":"1.0.0","operations":[{"name":%q,"type":"read","resourceType":"Patient","handler":%s}]}`,
		id, id, name, handler)
}

func apps(name, about string, others int, operation func(*rand.Rand) (kind, path string)) Workload {
	return Workload{
		Name: name, About: about,
		Prepare: func(ctx context.Context, b *Bench) (Task, error) {
			s, err := b.Samples(ctx)
			if err != nil {
				return Task{}, err
			}
			service, err := idleService(ctx)
			if err != nil {
				return Task{}, err
			}
			put := func(id string, body []byte) error {
				x := b.Client.NewExchange()
				if err := x.Do(Request{Method: "PUT", Path: "App/" + id, Body: body}); err != nil {
					return err
				}
				if x.Status != 200 && x.Status != 201 {
					return fmt.Errorf("PUT App/%s: %d %s", id, x.Status, x.Body)
				}
				return nil
			}
			script := `{"type":"javascript","code":"(c) => ({id: c.resource.id, names: (c.resource.name || []).length})"}`
			if err := put("bench-script", benchApp("bench-script", "bench-script", script)); err != nil {
				return Task{}, err
			}
			if err := put("bench-service", benchApp("bench-service", "bench-service", `{"type":"http","url":"`+service.url+`"}`)); err != nil {
				return Task{}, err
			}
			x := b.Client.NewExchange()
			if err := x.Do(Request{Method: "GET", Path: "Patient/" + s.Patients[0] + "/$bench-service"}); err != nil {
				return Task{}, err
			}
			if x.Status != 200 {
				return Task{}, fmt.Errorf("$bench-service: %d %s", x.Status, x.Body)
			}
			if err := service.learn(); err != nil {
				return Task{}, err
			}
			for start := 0; start < others; start += 100 {
				var entries []string
				for i := start; i < min(start+100, others); i++ {
					id := fmt.Sprint("bench-", i)
					entries = append(entries, fmt.Sprintf(`{"resource":%s,"request":{"method":"PUT","url":"App/%s"}}`, benchApp(id, id, script), id))
				}
				x := b.Client.NewExchange()
				body := `{"resourceType":"Bundle","type":"transaction","entry":[` + strings.Join(entries, ",") + `]}`
				if err := x.Do(Request{Method: "POST", Path: "", Body: []byte(body)}); err != nil {
					return Task{}, err
				}
				if x.Status != 200 {
					return Task{}, fmt.Errorf("store Apps: %d %s", x.Status, x.Body)
				}
			}
			return Task{Op: func(_ context.Context, w *Worker) error {
				kind, path := operation(w.Rand)
				if kind == direct {
					return service.call(w)
				}
				if w.Do(kind, Request{Method: "GET", Path: "Patient/" + pick(w.Rand, s.Patients) + path}) {
					w.Moved(1)
				}
				return nil
			}}, nil
		},
	}
}

// direct is the kind of the calls of the service by this tool.
const direct = "service alone"

// appOperation draws what to ask of a patient.
func appOperation(r *rand.Rand) (kind, path string) {
	switch r.IntN(4) {
	case 0:
		return "read", ""
	case 1:
		return "script", "/$bench-script"
	case 2:
		return direct, ""
	}
	return "service", "/$bench-service"
}

// idle is an HTTP service that answers at once, in a process of its own as services are.
type idle struct {
	url    string
	client *http.Client
	last   *received // the server's last request; nil until it is fetched
}

type received struct {
	Header http.Header
	Body   []byte
}

// idleCommand is the process of an idle service. It prints its URL, keeps the first request
// with a body, which GET shows, and ends with its standard input.
func idleCommand() *cobra.Command {
	return &cobra.Command{Use: "idle-service", Hidden: true, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		var first atomic.Pointer[received]
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.Method == http.MethodGet {
				_ = json.NewEncoder(w).Encode(first.Load())
				return
			}
			if body, err := io.ReadAll(r.Body); err == nil && first.Load() == nil {
				first.Store(&received{r.Header.Clone(), body})
			}
			_, _ = io.WriteString(w, `{"ok":true}`)
		})}
		fmt.Fprintf(c.OutOrStdout(), "http://%s/\n", l.Addr())
		go func() {
			_, _ = io.Copy(io.Discard, c.InOrStdin())
			_ = s.Close()
		}()
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}}
}

// idleService starts an idle service that ends with ctx.
func idleService(ctx context.Context) (*idle, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	service := exec.Command(self, "idle-service")
	in, err := service.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := service.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := service.Start(); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		_ = in.Close()
		_ = service.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	return &idle{url: strings.TrimSpace(url), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}}}, err
}

// learn fetches the server's last request from the service.
func (i *idle) learn() error {
	resp, err := i.client.Get(i.url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(&i.last)
}

// call sends that request to the service.
func (i *idle) call(w *Worker) error {
	start := w.start()
	r, err := http.NewRequest(http.MethodPost, i.url, bytes.NewReader(i.last.Body))
	if err != nil {
		return err
	}
	r.Header = i.last.Header
	resp, err := i.client.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	w.record(direct, time.Since(start), "")
	return err
}

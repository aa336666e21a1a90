package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// appWorkload sets operations of Apps beside plain reads of the same patients: a small
// script, and a service on this machine that takes no time. Contract: Apps, section 7: a
// script takes at most 150 us more than a read at the median and 3,000 a second on two
// processors, a service 100 us.
var appWorkload = apps("app", "plain reads of patients beside operations of Apps: a small script, and an HTTP service that takes no time", 0, appOperation)

// appScriptWorkload is the script of appWorkload alone.
var appScriptWorkload = apps("app-script", "the small script of app alone", 0, func(*rand.Rand) (kind, path string) { return "script", "/$bench-script" })

// appsWorkload is appWorkload among 1,000 active Apps: routing costs the same as with one.
var appsWorkload = apps("apps", "as app, with 1,000 active Apps", 1000, appOperation)

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
			if err := put("bench-service", benchApp("bench-service", "bench-service", `{"type":"http","url":"`+service+`"}`)); err != nil {
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
				if w.Do(kind, Request{Method: "GET", Path: "Patient/" + pick(w.Rand, s.Patients) + path}) {
					w.Moved(1)
				}
				return nil
			}}, nil
		},
	}
}

// appOperation draws what to ask of a patient.
func appOperation(r *rand.Rand) (kind, path string) {
	switch r.IntN(3) {
	case 0:
		return "read", ""
	case 1:
		return "script", "/$bench-script"
	}
	return "service", "/$bench-service"
}

// idleService is an HTTP service that answers at once, until ctx ends.
func idleService(ctx context.Context) (url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`)
	})}
	go func() { _ = s.Serve(l) }()
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return "http://" + l.Addr().String() + "/", nil
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Contract, Notifications 4: kiln admin notification list|show|redeliver|tail.
func TestNotificationCommands(t *testing.T) {
	t.Parallel()
	var rounds atomic.Int64
	var mu sync.Mutex
	var asked []string
	delivery := func(id, status, attempts string) string {
		return fmt.Sprintf(`{"id":%q,"subscription":"Subscription/s","event":"create","resourceType":"Patient","resourceId":"p","versionId":"1","status":%q,"attempts":[%s]}`, id, status, attempts)
	}
	failed := delivery("d1", "failed", `{"at":"2026-01-01T00:00:00Z","status":503,"durationMs":7,"error":"503 busy"}`)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.RequestURI())
		mu.Unlock()
		list := failed
		if r.URL.Query().Get("_since") != "" && rounds.Add(1) > 1 {
			list = delivery("d2", "delivered", `{"at":"2026-01-01T00:00:01Z","status":200,"durationMs":3,"error":null}`) + "," + failed
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/deliveries"):
			fmt.Fprintf(w, `{"deliveries":[%s],"next":null}`, list)
		case strings.HasSuffix(r.URL.Path, "/dead-letters/redeliver"):
			io.WriteString(w, `{"redelivered":12}`)
		default:
			io.WriteString(w, failed)
		}
	}))
	t.Cleanup(s.Close)
	for _, c := range []struct {
		command, asks string
		prints        []string
	}{
		{"list --status failed --subscription s", "GET /admin/notifications/deliveries?_count=100&status=failed&subscription=s", []string{"d1", "Subscription/s", "Patient/p/1", "failed", "503 busy"}},
		{"show d1", "GET /admin/notifications/deliveries/d1", []string{`"attempts"`, "503 busy"}},
		{"redeliver d1", "POST /admin/notifications/deliveries/d1/redeliver", []string{"d1"}},
		{"redeliver --dead-letters --subscription s", "POST /admin/notifications/dead-letters/redeliver?subscription=s", []string{"12 deliveries"}},
	} {
		t.Run(c.command, func(t *testing.T) {
			var out bytes.Buffer
			cmd := root()
			cmd.SetOut(&out)
			cmd.SetArgs(append(append([]string{"admin", "notification"}, strings.Fields(c.command)...), "--server", s.URL))
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if got := asked[len(asked)-1]; got != c.asks {
				t.Errorf("asked %s, want %s", got, c.asks)
			}
			for _, text := range c.prints {
				if !strings.Contains(out.String(), text) {
					t.Errorf("printed %q, want %q", out.String(), text)
				}
			}
		})
	}
	t.Run("tail", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		in, out := io.Pipe()
		cmd := root()
		cmd.SetOut(out)
		cmd.SetArgs([]string{"admin", "notification", "tail", "--server", s.URL})
		done := make(chan error, 1)
		go func() { done <- cmd.ExecuteContext(ctx) }()
		line := make([]byte, 1000)
		n, err := in.Read(line)
		if text := string(line[:n]); err != nil || !strings.Contains(text, "Patient/p  delivered  200 in 3 ms") || strings.Contains(text, "503") {
			t.Errorf("%q %v, want what ended since", text, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

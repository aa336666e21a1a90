package conformance

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// docs/notifications.md: the receivers check the signature, where their language is there.
func TestDocumentedReceivers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/notifications.md")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, quick)
	for _, c := range []struct{ language, program, file string }{{"python", "python3", "hook.py"}, {"javascript", "node", "hook.js"}} {
		t.Run(c.language, func(t *testing.T) {
			program, err := exec.LookPath(c.program)
			if err != nil {
				t.Skipf("%s is not installed", c.program)
			}
			_, rest, _ := strings.Cut(string(text), "```"+c.language+"\n")
			code, _, ok := strings.Cut(rest, "```")
			if !ok {
				t.Fatalf("docs/notifications.md has no receiver in %s", c.language)
			}
			file := filepath.Join(t.TempDir(), c.file)
			if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address := l.Addr().String()
			_, port, _ := net.SplitHostPort(address)
			l.Close()
			s := s.in(t)
			// The Subscription comes first: the receiver is started with its secret.
			a := s.do("POST", "/Subscription", subscription("Patient?family="+c.language, "http://"+address))
			id := a.json.(map[string]any)["id"].(string)
			secret := s.do("POST", "/Subscription/"+id+"/$secret", "").json.(map[string]any)["secret"].(string)
			cmd := exec.Command(program, file)
			cmd.Env = append(os.Environ(), "SECRET="+secret, "PORT="+port)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
				conn, err := net.Dial("tcp", address)
				if err == nil {
					conn.Close()
					break
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
			resp, err := http.Post("http://"+address, "application/json", strings.NewReader("forged"))
			if err != nil || resp.StatusCode != 401 {
				t.Errorf("a message without a signature: %v %v, want 401", resp, err)
			}
			// The first handshakes may have come before the receiver; a PUT tries again.
			m := s.do("GET", "/Subscription/"+id, "").json.(map[string]any)
			if m["status"] != "active" {
				s.do("PUT", "/Subscription/"+id, strings.Replace(subscription("Patient?family="+c.language, "http://"+address), `"status"`, `"id":"`+id+`","status"`, 1))
			}
			s.awaitStatus(id, "active")
			pid := s.do("POST", "/Patient", patient(c.language)).json.(map[string]any)["id"].(string)
			lines := make(chan string, 100)
			go func() {
				for in := bufio.NewScanner(out); in.Scan(); {
					lines <- in.Text()
				}
			}()
			for {
				select {
				case line := <-lines:
					if strings.Contains(line, pid) {
						return
					}
				case <-time.After(patience):
					t.Fatal("the receiver printed nothing")
				}
			}
		})
	}
}

// Contract, Notifications 2: an event fires exactly where a search for the new version finds
// it.
func TestMatchingAgreesWithSearch(t *testing.T) {
	t.Parallel()
	s := start(t)
	criteria := []string{
		"family=a", "family:exact=Ab", "family:contains=b", "given=x", "gender=male", "gender:not=male", "birthdate=ge1980", "birthdate=lt1980-06",
		"active=true", "active:missing=true", "family=a,b&gender=female", "name=x&birthdate=1990", "_lastUpdated=gt2000", "given:missing=false",
	}
	streams := make([]*sse, len(criteria))
	for i, c := range criteria {
		streams[i] = s.stream("/Patient/$events?" + c)
	}
	families, given, genders, births := []string{"A", "Ab", "B", "Cab"}, []string{"X", "Y", ""}, []string{"male", "female", ""}, []string{"1975", "1980-03-01", "1990-05", ""}
	n := 0
	for i := range 72 {
		var b strings.Builder
		fmt.Fprintf(&b, `{"resourceType":"Patient","name":[{"family":%q`, families[i%4])
		if g := given[i%3]; g != "" {
			fmt.Fprintf(&b, `,"given":[%q]`, g)
		}
		b.WriteString(`}]`)
		if g := genders[i/3%3]; g != "" {
			fmt.Fprintf(&b, `,"gender":%q`, g)
		}
		if d := births[i/9%4]; d != "" {
			fmt.Fprintf(&b, `,"birthDate":%q`, d)
		}
		if i%5 > 0 {
			fmt.Fprintf(&b, `,"active":%t`, i%5 > 2)
		}
		b.WriteString(`}`)
		if a := s.do("POST", "/Patient", b.String()); a.status != 201 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		n++
	}
	for i, c := range criteria {
		var want, got []string
		for _, e := range s.do("GET", "/Patient?_count=200&"+c, "").json.(map[string]any)["entry"].([]any) {
			want = append(want, e.(map[string]any)["resource"].(map[string]any)["id"].(string))
		}
		for range want {
			ev := streams[i].next()
			_, rest, _ := strings.Cut(ev.data, `"resourceId":"`)
			id, _, _ := strings.Cut(rest, `"`)
			got = append(got, id)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d events of other resources than the search's %d", c, len(got), len(want))
		}
		if len(streams[i].events) > 0 {
			t.Errorf("%s: more events than the search finds", c)
		}
	}
	for _, e := range streams {
		e.close()
	}
}

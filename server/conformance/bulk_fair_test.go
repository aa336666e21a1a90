package conformance

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"kiln/server"
)

// Contract: Bulk data: a long import does not hold up the export of somebody else.
func TestLongImportLetsOthersWork(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *server.Config) { c.Jobs.Workers, c.Jobs.MaxPerClient = 2, 10 })
	var lines strings.Builder
	for i := range 36_000 {
		fmt.Fprintf(&lines, `{"resourceType":"Basic","id":"%d","code":{"text":"%s"}}`+"\n", i, strings.Repeat("x", 1300))
	}
	long := s.startImport("/$import", "ndjson", lines.String())
	began := time.Now()
	s.bulk("GET", "/$export?_type=Patient", "").want()
	export := time.Since(began)
	if a := s.do("GET", long, ""); a.status != 202 {
		t.Skipf("the import ended within %s, before the export", export)
	}
	s.imported(long).want(36_000, 0, 0, 0)
	if all := time.Since(began); export > all*3/4 {
		t.Errorf("the export took %s of the %s of the import", export, all)
	}
}

// holdRequest sends the header of a request and not its body: the request is in flight until the test ends.
func (s *service) holdRequest() {
	s.t.Helper()
	at, err := url.Parse(s.root("/"))
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := net.Dial("tcp", at.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "POST /fhir/Patient HTTP/1.1\r\nHost: %s\r\nContent-Type: application/fhir+json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n", at.Host)
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "100") { // its handler reads the body
		s.t.Fatalf("%q %v", line, err)
	}
}

// Contract: Bulk data: jobs give way to requests, and end also where requests never do. Kick-offs, the status and
// the files of jobs are no such requests.
func TestJobsGiveWayToRequests(t *testing.T) {
	t.Parallel()
	s := start(t)
	const n = 300
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"resourceType":"Patient","id":"%d","active":true}`+"\n", i)
	}
	rests := func() string { return s.metric("service_job_rest_seconds_total") }
	s.upload(lines.String()).want(n, 0, 0, 0)
	s.bulk("GET", "/$export", "")
	if d := rests(); d != "0" {
		t.Errorf("beside kick-offs, polls and downloads of its own a job has rested %s s", d)
	}

	s.put("/ViewDefinition/everyone", everyone).want(201)
	s.holdRequest()
	for _, work := range []struct {
		name string
		do   func()
	}{
		{"an import", func() { s.upload(lines.String()).want(0, 0, n, 0) }},
		{"an export", func() {
			if got := len(s.bulk("GET", "/$export?_type=Patient", "").lines); got != n {
				t.Errorf("an export beside requests has %d resources", got)
			}
		}},
		{"an export of some patients", func() {
			s.bulk("GET", "/Patient/$export?patient=Patient/1,Patient/2", "").want("Patient/1", "Patient/2")
		}},
		{"a search", func() {
			if got := len(s.bulk("GET", "/Patient?active=true", "", "Prefer", "respond-async").lines); got != n {
				t.Errorf("an asynchronous search beside requests has %d resources", got)
			}
		}},
		{"an export of a view", func() {
			s.exported(inParameters(`{"name":"subject","part":[{"name":"subjectReference","valueReference":{"reference":"ViewDefinition/everyone"}}]}`))
		}},
		{"reindexing", func() {
			s.post("/$reindex?type=Patient", "").want(202)
			eventually(t, "the job is done", func() bool {
				a := s.get("/$reindex").want(200)
				for i := range a.len("parameter") {
					if a.str(fmt.Sprintf("parameter.%d.part.2.valueCode", i)) != "done" {
						return false
					}
				}
				return true
			})
		}},
	} {
		before := rests()
		// A request counts from the end of a window on, and work of one slice that comes first has nothing to rest after.
		eventually(t, work.name+" gives way to a request in flight", func() bool {
			work.do()
			return rests() != before
		})
	}
}

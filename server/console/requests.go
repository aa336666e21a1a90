package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"kiln/gen/db"
)

// sentRequest is a request that the page has sent, with its answer, as the database keeps it.
type sentRequest struct {
	Method, Path, Headers, Body string
	Status                      int
	AnswerHeaders               []string
	Answer                      string
	TooLong                     bool // the answer is not kept whole
	TookMS                      int64
}

// requestsPage is the form with an answer.
type requestsPage struct {
	Methods       []option
	Path, Headers string
	Body          string
	Note          string
	Answer        *shownAnswer
	Curl          string
	Sent          table
}

// shownAnswer is an answer on the page.
type shownAnswer struct {
	Status        int
	Text          string // of the status
	Headers, Body string
	Entries       *table
	Note          string
}

var methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"}

// maxKept bounds an answer that is kept, in bytes.
const maxKept = maxJSON

// requests shows the form, alone or with the answer to an earlier request.
func (v *visit) requests(parts []string) error {
	p := requestsPage{Path: "/metadata"}
	chosen := "GET"
	if len(parts) == 1 {
		var sent sentRequest
		path, ok := v.c.seal.open("request", parts[0])
		switch {
		case ok && startsJob(path):
			p.Path, p.Headers, p.Note = path, "Prefer: respond-async", v.T("This request starts a job. It is not sent yet.")
		case ok:
			sent = v.sendRequest(sentRequest{Method: "GET", Path: path}, nil)
		default:
			kept, err := v.findRequest(parts[0])
			if err != nil {
				return err
			}
			sent = *kept
		}
		if p.Note == "" {
			chosen, p.Path, p.Headers, p.Body = sent.Method, sent.Path, sent.Headers, sent.Body
			p.Answer, p.Curl = v.showAnswer(sent), v.curl(sent)
		}
	}
	for _, m := range methods {
		p.Methods = append(p.Methods, option{Value: m, Chosen: m == chosen})
	}
	rows, err := v.c.DB().ListConsoleRequests(v.r.Context(), v.sessionID())
	if err != nil {
		return err
	}
	p.Sent = table{Name: v.T("Sent requests"), Head: columns(v.T("Request"), "#"+v.T("Status"), v.T("Time"))}
	for _, row := range rows {
		var sent sentRequest
		if json.Unmarshal(row.Request, &sent) == nil {
			p.Sent.Rows = append(p.Sent.Rows, []cell{linkCell(clipText(sent.Method+" "+sent.Path), "/console/requests/"+row.ID), v.numberCell(int64(sent.Status)), timeCell(&row.At)})
		}
	}
	return v.show("requests", v.T("Requests"), "", p)
}

// startsJob reports whether a GET of a path is a kick-off. Another site can link to it, and a browser can load it twice.
func startsJob(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return strings.HasSuffix(path, "/$export")
}

// sessionID returns the id of the session, "" without authorization.
func (v *visit) sessionID() string {
	if v.session == nil {
		return ""
	}
	return v.session.Session
}

// send sends the request of the form, and leads to its answer.
func (v *visit) sendForm(_ []string) error {
	s := sentRequest{Method: v.form.Get("method"), Path: strings.TrimSpace(v.form.Get("path")), Headers: strings.TrimSpace(v.form.Get("headers")), Body: v.form.Get("body")}
	if !slices.Contains(methods, s.Method) {
		return bad(v.T("This method is not allowed here."))
	}
	body := []byte(s.Body)
	if file, err := v.fileOf("file"); err != nil {
		return err
	} else if file != nil {
		body = file
		if s.Body = ""; len(file) <= maxKept && utf8.Valid(file) {
			s.Body = string(file)
		}
	}
	s = v.sendRequest(s, body)
	id, err := v.keepRequest(s)
	if err != nil {
		return err
	}
	v.redirect("/console/requests/" + id)
	return nil
}

// findRequest returns a request that the session has sent.
func (v *visit) findRequest(id string) (*sentRequest, error) {
	row, err := v.c.DB().FindConsoleRequest(v.r.Context(), db.FindConsoleRequestParams{ID: id, Session: v.sessionID()})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errNoPage
	}
	if err != nil {
		return nil, err
	}
	sent := new(sentRequest)
	return sent, json.Unmarshal(row.Request, sent)
}

// keepRequest stores a request with its answer, and returns its id. A session keeps the newest.
func (v *visit) keepRequest(s sentRequest) (id string, err error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	id = random()
	text = []byte(strings.ReplaceAll(string(text), `\u0000`, `\ufffd`)) // jsonb has no NUL
	if err := v.c.DB().AddConsoleRequest(v.r.Context(), db.AddConsoleRequestParams{ID: id, Session: v.sessionID(), At: v.c.now(), Request: text}); err != nil {
		return "", err
	}
	return id, v.c.DB().SweepConsoleRequests(v.r.Context(), db.SweepConsoleRequestsParams{Session: v.sessionID(), Before: v.c.now().Add(-v.c.Settings().Times.Lifetime)})
}

// noHeader are headers that a request of the page does not choose.
var noHeader = setOf("Authorization Cookie Host Connection Content-Length Transfer-Encoding Upgrade Origin X-Forwarded-For X-Forwarded-Proto X-Forwarded-Host Forwarded Te Trailer Accept-Encoding")

// sendRequest sends a request to this server.
func (v *visit) sendRequest(s sentRequest, body []byte) sentRequest {
	refuse := func(words string) sentRequest {
		s.Status, s.Answer = http.StatusBadRequest, words
		return s
	}
	if !strings.HasPrefix(s.Path, "/") || strings.HasPrefix(s.Path, "//") || strings.ContainsAny(s.Path, " \\\r\n\t") {
		return refuse(v.T("The path must begin with / and be one of this server."))
	}
	path, _, _ := strings.Cut(s.Path, "?")
	bare := strings.TrimPrefix(path, "/fhir")
	if strings.HasPrefix(bare, "/console") || strings.HasPrefix(bare, "/auth/") || strings.HasPrefix(bare, "/notifications/") || strings.HasSuffix(bare, "/$events") || strings.HasPrefix(bare, "/debug/") {
		return refuse(v.T("This path cannot be asked from here."))
	}
	var headers []string
	for line := range strings.Lines(s.Headers) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
		if ok && name != "" && !noHeader[name] {
			headers = append(headers, name, strings.TrimSpace(value))
		}
	}
	began := time.Now()
	a := v.call(s.Method, s.Path, body, headers...)
	s.TookMS, s.Status = time.Since(began).Milliseconds(), a.status
	for name, values := range a.header {
		for _, value := range values {
			if name != "Set-Cookie" && !strings.HasPrefix(name, "Access-Control-") {
				s.AnswerHeaders = append(s.AnswerHeaders, name+": "+value)
			}
		}
	}
	slices.Sort(s.AnswerHeaders)
	text := a.Bytes()
	if !utf8.Valid(text) || len(text) > maxKept {
		s.TooLong = true
		text = []byte(strings.ToValidUTF8(string(text[:min(len(text), maxKept)]), ""))
	}
	s.Answer = string(text)
	return s
}

// showAnswer is an answer as the page shows it.
func (v *visit) showAnswer(s sentRequest) *shownAnswer {
	a := &shownAnswer{Status: s.Status, Text: http.StatusText(s.Status), Headers: strings.Join(s.AnswerHeaders, "\n"), Body: s.Answer}
	if s.TooLong {
		a.Note = v.T("The answer is longer than %s or no text; the rest is not shown.", v.bytes(maxKept))
		return a
	}
	a.Body = indentJSON([]byte(s.Answer))
	var b struct {
		ResourceType string
		Type         string
		Entry        []struct {
			FullURL  string `json:"fullUrl"`
			Resource struct{ ResourceType, ID string }
			Response struct {
				Status, Location string
				Outcome          json.RawMessage
			}
		}
	}
	if json.Unmarshal([]byte(s.Answer), &b) != nil || b.ResourceType != "Bundle" {
		return a
	}
	a.Entries = &table{Name: v.T("Entries"), Head: columns(v.T("Entry"), v.T("Status"), v.T("Outcome"))}
	for i, e := range b.Entry {
		name := e.Resource.ResourceType + "/" + e.Resource.ID
		if e.Resource.ID == "" {
			name, _, _ = strings.Cut(e.Response.Location, "/_history/")
			if at := strings.LastIndex(strings.TrimSuffix(name, "/"), "/"); at > 0 {
				if before := strings.LastIndexByte(name[:at], '/'); before >= 0 {
					name = name[before+1:]
				}
			}
		}
		head := referenceCell(name, "")
		if name == "/" || name == "" {
			head = cell{Text: formatNumber(v.Language, int64(i+1))}
		}
		head.Head = true
		outcome := ""
		if len(e.Response.Outcome) > 0 {
			var words []string
			for _, issue := range issuesOf(e.Response.Outcome) {
				words = append(words, issue.Diagnostics)
			}
			outcome = strings.Join(words, "\n")
		}
		a.Entries.Rows = append(a.Entries.Rows, []cell{head, textCell(e.Response.Status), {Text: clipText(outcome), Class: "wrap"}})
	}
	return a
}

// curl is the request as a command line.
func (v *visit) curl(s sentRequest) string {
	quote := func(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
	scheme := "http"
	if v.r.TLS != nil {
		scheme = "https"
	}
	origin := scheme + "://" + v.r.Host
	if v.c.Auth != nil {
		origin = v.c.Auth.ConsoleOrigin(v.r)
	}
	out := "curl -X " + s.Method + " " + quote(origin+s.Path)
	if v.c.Auth != nil {
		out += ` -H "Authorization: Bearer $TOKEN"`
	}
	for line := range strings.Lines(s.Headers) {
		out += " -H " + quote(strings.TrimSpace(line))
	}
	if s.Body != "" {
		if !strings.Contains(strings.ToLower(s.Headers), "content-type") {
			out += " -H 'Content-Type: application/fhir+json'"
		}
		out += " -d " + quote(s.Body)
	}
	return out
}

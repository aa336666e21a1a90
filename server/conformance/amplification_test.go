package conformance

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Short requests make no long answers, and small bodies no large work.
// Contract, What we hold to: sizes, depth, time and memory are bounded.
func TestAmplification(t *testing.T) {
	t.Parallel()
	s := start(t)
	t.Run("reads of one Bundle are answered up to 64 MB", func(t *testing.T) {
		s := s.in(t)
		s.put("/Binary/big", `{"resourceType":"Binary","id":"big","contentType":"text/plain","data":"`+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("large "), 700_000))+`"}`).want(201)
		get := `{"request":{"method":"GET","url":"Binary/big"}}`
		a := s.post("/", bundle("batch", strings.Split(strings.Repeat(get+" ", 60)[:60*(len(get)+1)-1], " ")...)).want(200)
		answered, refused := 0, 0
		for i := range 60 {
			switch status := a.str(fmt.Sprintf("entry.%d.response.status", i)); status[:3] {
			case "200":
				answered++
			case "400":
				a.equal(fmt.Sprintf("entry.%d.response.outcome.issue.0.code", i), "too-costly")
				refused++
			}
		}
		if answered < 12 || answered > 12+8 || answered+refused != 60 {
			t.Errorf("of 60 reads of 5.6 MB each %d are answered, %d refused", answered, refused)
		}
		s.post("/", bundle("transaction", strings.Split(strings.Repeat(get+" ", 30)[:30*(len(get)+1)-1], " ")...)).issue(400, "too-costly")
	})
	t.Run("a Bundle has 50,000 entries at most", func(t *testing.T) {
		for _, entry := range []string{`{}`, `{"request":{"method":"GET","url":"Patient/x"}}`} {
			s.in(t).post("/", `{"resourceType":"Bundle","type":"batch","entry":[`+strings.Repeat(entry+",", 50_000)+entry+`]}`).issue(400, "too-costly", "50000")
		}
	})
	t.Run("what a refused body holds behind its mistakes is not kept", func(t *testing.T) {
		a := s.in(t).post("/Patient", `{"resourceType":"Patient","name":[`+strings.Repeat(`{},`, 2_000_000)+`{}]}`)
		a.issue(422, "invalid")
		if n := a.len("issue"); n > 60 {
			t.Errorf("%d issues", n)
		}
		s.in(t).post("/Patient", `{"resourceType":"Patient","name":[`+strings.Repeat(`{},`, 100)+`{"x":[}]}`).issue(400, "structure")
	})
	t.Run("a patch has 1,000 operations at most", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/patched", `{"resourceType":"Patient","id":"patched"}`).want(201)
		op := `{"op":"add","path":"/active","value":true}`
		do := func(n int) *answer {
			return s.do("PATCH", "/Patient/patched", "["+strings.Repeat(op+",", n-1)+op+"]", "Content-Type", "application/json-patch+json")
		}
		do(1000).want(200)
		do(1001).issue(400, "invalid", "more than 1000")
	})
	t.Run("references to contained resources are found by their ids", func(t *testing.T) {
		var contained, link []any
		const n = 20_000
		for i := range n {
			contained = append(contained, map[string]any{"resourceType": "Organization", "id": fmt.Sprint("o", i), "name": "x", "partOf": map[string]any{"reference": fmt.Sprint("#o", (i+1)%n)}})
		}
		link = append(link, map[string]any{"reference": "#o0"}, map[string]any{"reference": fmt.Sprint("#o", n-1)})
		body, err := json.Marshal(map[string]any{"resourceType": "Patient", "contained": contained, "generalPractitioner": link})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		s.in(t).post("/Patient/$validate", string(body)).want(200)
		t.Logf("%d contained resources validated in %v", n, time.Since(begin))
	})
	t.Run("parameters of a search are 4 MB at most", func(t *testing.T) {
		search := func(n int) *answer {
			return s.in(t).do("POST", "/Patient/_search", "name="+strings.Repeat("a", n), "Content-Type", "application/x-www-form-urlencoded")
		}
		search(4<<20).issue(400, "too-costly", "4194304")
		search(1000).want(200)
	})
	t.Run("a resource of too many words is told of, where _content meets it", func(t *testing.T) {
		s := s.in(t)
		var words strings.Builder
		for i := range 130_000 {
			fmt.Fprintf(&words, "w%06d ", i)
		}
		basic := func(id, text string) string {
			return fmt.Sprintf(`{"resourceType":"Basic","id":%q,"code":{"text":"needle"},"extension":[{"url":"http://x/y","valueString":%q}]}`, id, text)
		}
		s.put("/Basic/small", basic("small", "x")).want(201)
		s.get("/Basic?_content=needle").want(200).equal("total", "1")
		s.put("/Basic/wordy", basic("wordy", words.String())).want(201)
		s.get("/Basic?_content=needle").issue(400, "too-costly", "_content")
		s.get("/Basic?_content=needle&_id=small").want(200).equal("total", "1")
	})
	t.Run("a guard without a value is refused", func(t *testing.T) {
		s := s.in(t)
		s.put("/Patient/guarded", `{"resourceType":"Patient","id":"guarded"}`).want(201)
		s.put("/Patient/guarded", `{"resourceType":"Patient","id":"guarded"}`, "If-Match", "").issue(400, "invalid")
		s.post("/Patient", `{"resourceType":"Patient"}`, "If-None-Exist", "").issue(400, "invalid")
	})
}

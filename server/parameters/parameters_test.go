package parameters

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	list := []Parameter{
		String("s", `a "quoted" text`), Code("c", "x"), URI("u", "http://x"), Boolean("b", true), Integer("i", -3),
		Decimal("d", "1.50"), Reference("r", "Patient/1"), Resource("res", json.RawMessage(`{"resourceType":"Patient"}`)),
		Parts("p", String("ü", "1"), DateTime("at", "2024-01-02")),
	}
	b, err := Write(list)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Read(b)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Write(back)
	if err != nil || string(again) != string(b) {
		t.Errorf("read back as %s (%v), written as %s", again, err, b)
	}
	if got := Get(back, "d").Text(); got != "1.50" {
		t.Errorf("the decimal is %q: its digits are to stay", got)
	}
	if !Get(back, "b").True() || Get(back, "s").Text() != `a "quoted" text` || Get(back, "none").Text() != "" {
		t.Errorf("values are read as %+v", back)
	}
}

func TestReadRefuses(t *testing.T) {
	for body, want := range map[string]string{
		`{"resourceType":"Patient"}`:                                                                       "Patient",
		`{"resourceType":"Parameters","parameter":[{"name":"x","colour":1}]}`:                              "colour",
		`{"resourceType":"Parameters","parameter":[{"name":"x","valueString":"a","valueCode":"b"}]}`:       "two values",
		`{"resourceType":"Parameters","parameter":[{"name":7}]}`:                                           "name",
		`{"resourceType":"Parameters","parameter":[{"name":"x","part":[{"name":"y","value":"no type"}]}]}`: "value",
	} {
		if _, err := Read([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q", body, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"resourceType":"Parameters","parameter":[{"name":"x","part":[{"name":"y","valueInteger":1}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		list, err := Read(body)
		if err != nil {
			return
		}
		if _, err := Write(list); err != nil {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}

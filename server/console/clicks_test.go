package console_test

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// The promised clicks from the Overview, in a real browser; and the stops of the keyboard.
func TestClicks(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	s.put("App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"1","status":"draft"}`)
	s.put("App/dose", `{"resourceType":"App","id":"dose","name":"Dose check","version":"2","status":"draft"}`)
	c := openChromium(t, s.base)
	at := func(heading string) {
		t.Helper()
		if got := c.text("h1"); got != heading {
			t.Errorf("h1 %q, want %q", got, heading)
		}
	}

	// A known resource: 1.
	c.open("/console")
	c.fill("Go to", "Patient/b")
	c.press("button", "Go to")
	at("Patient/b")

	// The highest value of a code and that patient's curve: 4, of 5.
	c.open("/console")
	c.fill("Go to", "Observation?code=8302-2")
	c.press("button", "Go to")
	c.press("link", "Value")
	if got := c.text("tbody tr td:nth-of-type(2)"); got != "155 cm" {
		t.Errorf("the first value is %q", got)
	}
	if got := script[string](c, `document.querySelector("th[aria-sort]").getAttribute("aria-sort")`); got != "descending" {
		t.Errorf("aria-sort is %q", got)
	}
	script[bool](c, `document.querySelector("tbody tr td a[href^='/console/Patient/']").id = "subject"; true`)
	subject := c.text("#subject")
	c.press("link", subject)
	at(subject)
	c.press("link", "Patient view")
	c.must("image", "Body height: 8 values, 2020-03-04 to 2027-03-04")

	// An App's rollback: 4.
	c.open("/console")
	for _, name := range []string{"Apps", "Dose check", "Versions"} {
		c.press("link", name)
	}
	c.press("button", "Roll back to version 1")
	if got := c.text("[role=status]"); got != "Version 1 is restored." {
		t.Errorf("status %q", got)
	}

	// The builder suggests codes that the person can see, and comparisons that the parameter has.
	c.open("/console/resources/Observation")
	c.fill("Parameter", "code")
	c.run(chromedp.Focus(chromedp.CSS("#value")), chromedp.KeyEvent("8302"))
	for deadline := time.Now().Add(10 * time.Second); script[int](c, `document.querySelectorAll("#values option[value='8302-2']").length`) == 0; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no code is suggested")
		}
	}
	if script[bool](c, `[...document.querySelectorAll("#comparison option")].some(o => o.value == "ge" && !o.disabled)`) {
		t.Error("a token has the comparison ge")
	}

	// By keyboard: the first stop skips to the content, and the menu of a narrow screen opens.
	c.open("/console")
	c.run(chromedp.KeyEvent(kb.Tab))
	if got := script[string](c, "document.activeElement.textContent"); got != "Skip to content" {
		t.Errorf("the first stop is %q", got)
	}
	c.run(chromedp.KeyEvent(kb.Enter))
	if got := script[string](c, "document.activeElement.id"); got != "main" {
		t.Errorf("the link leads to %q", got)
	}
	c.run(chromedp.EmulateViewport(390, 844))
	if script[bool](c, `document.getElementById("nav").checkVisibility()`) {
		t.Error("the navigation covers a narrow screen")
	}
	c.run(chromedp.Focus(chromedp.CSS(".menu")), chromedp.KeyEvent(kb.Enter))
	if !script[bool](c, `document.getElementById("nav").checkVisibility()`) {
		t.Error("the menu does not open")
	}
	c.quiet("clicks")
}

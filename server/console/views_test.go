package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"kiln/server"
)

// namesView is a view with the names of patients.
func namesView(name string) string {
	return `{"resourceType":"ViewDefinition","id":"` + name + `","name":"` + name + `","status":"active","resource":"Patient","select":[{"column":[{"name":"id","path":"getResourceKey()"},{"name":"family","path":"name.first().family"}]}]}`
}

// A table is built, shown and removed by the screen Views, in a real browser.
func TestViewsInABrowser(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	s.records()
	s.put("ViewDefinition/names", namesView("names"))
	c := openChromium(t, s.base)
	c.open("/console")
	c.press("link", "Views")
	if h1 := c.text("h1"); h1 != "Views" || script[string](c, "location.pathname") != "/console/views" {
		t.Errorf("the link leads to %q", h1)
	}
	c.must("table", "Views")
	if n := script[int](c, `document.querySelectorAll("datalist option[value='ViewDefinition/names']").length`); n != 1 {
		t.Errorf("the view is suggested %d times", n)
	}
	c.fill("View", "ViewDefinition/names")
	c.fill("Indexes", "family\nid, family")
	c.press("button", "Build table")
	c.must("status", "The table view.names is built.")
	c.await("/console/views", "current")
	row := strings.Join(strings.Fields(c.text("tbody tr")), " ")
	if !strings.HasPrefix(row, "names view.names ViewDefinition/names current 2 ") {
		t.Errorf("the row is %q", row)
	}
	c.press("link", "names")
	c.must("table", "Columns", "Problems")
	if text := c.text("main"); !strings.Contains(text, "family; id, family") || !strings.Contains(text, "text") {
		t.Errorf("the page of the table is %s", text)
	}
	c.press("button", "Remove names")
	c.must("link", "Cancel")
	if got := c.text("h1"); got != "Remove names?" {
		t.Errorf("h1 %q", got)
	}
	c.press("button", "Remove names")
	c.must("status", "names is removed.")
	if n := script[int](c, `document.querySelectorAll("tbody tr").length`); n != 0 {
		t.Errorf("%d tables stay", n)
	}
	c.quiet("views")
}

// A refusal of a table has the words and the status of REST; the text of the form stays.
func TestViewsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, "")
	v := s.visitor()
	v.post("/console/views", url.Values{"view": {"ViewDefinition/none"}, "indexes": {"a"}}).want(http.StatusNotFound).has(`role="alert"`, `value="ViewDefinition/none"`)
	s.put("ViewDefinition/names", namesView("names"))
	v.post("/console/views", url.Values{"view": {"names"}, "indexes": {"none"}}).want(http.StatusUnprocessableEntity).has(`role="alert"`, "none")
	v.post("/console/views", url.Values{"view": {"names"}, "indexes": {""}}).want(http.StatusSeeOther)
	v.post("/console/views", url.Values{"view": {"names"}}).want(http.StatusConflict).has(`role="alert"`)
	v.get("/console/views/none").want(http.StatusNotFound)
	// A build that loses its table is no failed job.
	awaitBuild := func(state string, is func(state string) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
			var list []struct{ State, Failure string }
			if status := s.json("/admin/jobs?type=view-build", &list); status != http.StatusOK || len(list) > 1 {
				t.Fatalf("the jobs: %d %v", status, list)
			}
			if len(list) == 1 && list[0].State == "failed" {
				t.Fatalf("the job has failed: %s", list[0].Failure)
			}
			if len(list) == 1 && is(list[0].State) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the build does not get %s: %v", state, list)
			}
		}
	}
	awaitBuild("a job", func(string) bool { return true })
	v.post("/console/views/names/remove", url.Values{}).want(http.StatusSeeOther)
	v.post("/console/views/names/remove", url.Values{}).want(http.StatusNotFound)
	awaitBuild("to its end", func(state string) bool { return state != "running" && state != "waiting" })
	v.get("/console/views", "Accept-Language", "de").want(200).has("Tabelle erstellen", "Indexe")

	off := start(t, "", func(c *server.Config) { c.Views.Enabled = false })
	off.visitor().get("/console/views").want(http.StatusNotImplemented).has("<h1>Views</h1>", "views.enabled", `role="alert"`).lacks("Build table")
	off.visitor().post("/console/views", url.Values{"view": {"names"}}).want(http.StatusNotImplemented).has("<h1>Views</h1>", "views.enabled")
}

package conformance

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// packed makes a .tgz of names and contents in turn.
func packed(t testing.TB, files ...string) string {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Name: files[i], Typeflag: tar.TypeReg, Size: int64(len(files[i+1])), Mode: 0o644}
		if target, ok := strings.CutPrefix(files[i+1], "-> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, target, 0
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := tw.Write([]byte(files[i+1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (s *service) install(archive, query string) *answer {
	s.t.Helper()
	return s.post("/$install-package"+query, archive, "Content-Type", "application/gzip")
}

const (
	packageJSON    = `{"name":"example.ig","version":"1.0.0","fhirVersions":["4.0.1"]}`
	packageCodes   = `{"resourceType":"CodeSystem","id":"colours","url":"http://example.org/CodeSystem/colours","version":"%s","status":"active","content":"complete","concept":[{"code":"red"},{"code":"%s"}]}`
	packageCodeSet = `{"resourceType":"ValueSet","id":"colours","url":"http://example.org/ValueSet/colours","status":"active","compose":{"include":[{"system":"http://example.org/CodeSystem/colours"}]}}`
)

func TestInstallPackage(t *testing.T) {
	a, b := pair(t)
	a.put("/Patient/p", fmt.Sprintf(patientWithBoth, "p", "1970-01-01", "M", 1, "de", "Kin")).want(201)
	a.put("/ValueSet/colours", `{"resourceType":"ValueSet","id":"colours","url":"http://example.org/ValueSet/other","status":"active"}`).want(201)
	archive := packed(t, "package/package.json", packageJSON, "package/.index.json", "{}",
		"package/SearchParameter-kin.json", parameter("kin", "kin", "string", "Patient", "Patient.contact.name.family"),
		"package/CodeSystem-colours.json", fmt.Sprintf(packageCodes, "1", "green"), "package/ValueSet-colours.json", packageCodeSet,
		"package/example/Patient-x.json", `{"resourceType":"Patient","id":"not-taken"}`)

	t.Run("a dry run shows the plan and changes nothing", func(t *testing.T) {
		s := a.in(t)
		s.install(archive, "?dry-run=true").want(200).equal("resourceType", "Parameters").
			equal("parameter.0.valueString", "example.ig").equal("parameter.3.valueBoolean", "true").equal("parameter.4.valueInteger", "3")
		s.get("/CodeSystem/colours").want(404)
		s.get("/Patient?kin=kin").issue(400, "not-supported")
	})
	t.Run("a package is installed, on every server", func(t *testing.T) {
		s := a.in(t)
		sum := sha512.Sum512([]byte(archive))
		s.install(archive, "?integrity="+url.QueryEscape("sha512-"+base64.StdEncoding.EncodeToString(sum[:]))).want(200).
			equal("parameter.4.name", "create").equal("parameter.4.valueInteger", "3")
		for _, s := range []*service{b.in(t), s} {
			s.get("/CodeSystem/colours").want(200).equal("meta.versionId", "1")
			s.indexed("/Patient?kin=kin")
			s.finds("/Patient?kin=kin", "p")
		}
		s.get("/ValueSet/colours").want(200).equal("url", "http://example.org/ValueSet/other") // the id was taken
		s.finds("/ValueSet?url="+url.QueryEscape("http://example.org/ValueSet/colours")+"&_count=0").equal("total", "1")
		s.get("/Patient/not-taken").want(404)
	})
	t.Run("the same again changes nothing", func(t *testing.T) {
		s := a.in(t)
		s.install(archive, "").want(200).equal("parameter.6.name", "unchanged").equal("parameter.6.valueInteger", "3")
		s.get("/CodeSystem/colours").want(200).equal("meta.versionId", "1")
	})
	t.Run("a new version updates what differs, by URL", func(t *testing.T) {
		s := a.in(t)
		next := packed(t, "package/package.json", strings.Replace(packageJSON, "1.0.0", "1.1.0", 1),
			"package/CodeSystem-hues.json", strings.Replace(fmt.Sprintf(packageCodes, "2", "blue"), `"id":"colours"`, `"id":"hues"`, 1), "package/ValueSet-colours.json", packageCodeSet)
		s.install(next, "").want(200).equal("parameter.5.name", "update").equal("parameter.5.valueInteger", "1").equal("parameter.6.valueInteger", "1")
		s.get("/CodeSystem/colours").want(200).equal("meta.versionId", "2").equal("version", "2").equal("concept.1.code", "blue")
		s.get("/CodeSystem/hues").want(404)
		b.finds("/Patient?kin=kin", "p")
	})
}

func TestInstallPackageRefuses(t *testing.T) {
	s := start(t)
	good := "package/CodeSystem-colours.json"
	content := fmt.Sprintf(packageCodes, "1", "green")
	bomb := packed(t, "package/package.json", packageJSON, good, content, "package/big.json", `{"x":"`+strings.Repeat("a", 65<<20)+`"}`)
	for _, c := range []struct {
		name, archive, query string
		status               int
		word                 string
	}{
		{"not an archive", "hello", "", 400, "not a .tgz"},
		{"another digest", packed(t, "package/package.json", packageJSON, good, content), "?integrity=sha512-AAAA", 400, "digest is sha512-"},
		{"a path out of the archive", packed(t, "package/package.json", packageJSON, good, content, "package/../../etc/passwd", "x"), "", 400, "leads out of the archive"},
		{"an absolute path", packed(t, "package/package.json", packageJSON, good, content, "/etc/x.json", "{}"), "", 400, "leads out of the archive"},
		{"a link", packed(t, "package/package.json", packageJSON, good, content, "package/x.json", "-> /etc/passwd"), "", 400, "is a link"},
		{"no manifest", packed(t, good, content), "", 400, "package.json"},
		{"another FHIR version", packed(t, "package/package.json", strings.Replace(packageJSON, "4.0.1", "5.0.0", 1), good, content), "", 400, "5.0.0"},
		{"a file that unpacks to too much", bomb, "", 400, "larger than"},
		{"a definition that is no R4", packed(t, "package/package.json", packageJSON, good, content, "package/ValueSet-x.json", `{"resourceType":"ValueSet","url":"http://example.org/x","status":"active","colour":1}`), "?strict=true", 422, "package/ValueSet-x.json"},
		{"a parameter that cannot work", packed(t, "package/package.json", packageJSON, good, content, "package/SearchParameter-x.json", parameter("x", "x", "string", "Patient", "Patient.nickname")), "?strict=true", 422, "nickname"},
		{"two of one URL", packed(t, "package/package.json", packageJSON, good, content, "package/CodeSystem-y.json", strings.Replace(content, `"id":"colours"`, `"id":"y"`, 1)), "?strict=true", 422, "both define"},
		{"a bad value of dry-run", packed(t, "package/package.json", packageJSON, good, content), "?dry-run=maybe", 400, "dry-run"},
		{"damaged", packed(t, "package/package.json", packageJSON, good, content)[:150], "", 400, "cannot be installed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			a := s.install(c.archive, c.query).want(c.status)
			if !strings.Contains(string(a.body), c.word) {
				t.Errorf("the outcome does not say %q: %s", c.word, clip(a.body))
			}
			s.get("/CodeSystem/colours").want(404)
		})
	}
	s.post("/$install-package", "{}").issue(415, "not-supported", "application/gzip")
	s.get("/$install-package").want(405)
}

// Published packages contain mistakes. The report names file and element, and only the faulty part is left out.
func TestInstallPackageWithMistakes(t *testing.T) {
	s := start(t)
	profile := `{"resourceType":"StructureDefinition","id":"p1","url":"http://example.org/StructureDefinition/p1","name":"P1","status":"active","fhirVersion":"4.0.1",` +
		`"kind":"resource","abstract":false,"type":"Patient","baseDefinition":"http://hl7.org/fhir/StructureDefinition/Patient","derivation":"constraint",` +
		`"differential":{"element":[{"id":"Patient","path":"Patient"},{"id":"Patient.birthDate","path":"Patient.birthDate","min":1}]}}`
	archive := packed(t, "package/package.json", packageJSON,
		"package/CodeSystem-colours.json", fmt.Sprintf(packageCodes, "1", "green"),
		"package/ValueSet-x.json", `{"resourceType":"ValueSet","url":"http://example.org/x","status":"active","colour":1}`,
		"package/SearchParameter-x.json", parameter("x", "x", "string", "Patient", "Patient.nickname"),
		"package/SearchParameter-mine.json", parameter("mine", "birthdate", "date", "Patient", "Patient.deceased.ofType(dateTime)"),
		"package/broken.json", "{", "package/StructureDefinition-p1.json", profile)
	a := s.install(archive, "").want(200)
	for _, word := range []string{`"name":"create","valueInteger":2`, `"name":"refused","valueInteger":3`, "package/ValueSet-x.json", "colour", "nickname", "package/broken.json",
		`"name":"conflict"`, "Patient.birthdate"} {
		if !strings.Contains(string(a.body), word) {
			t.Errorf("the answer does not say %q: %s", word, clip(a.body))
		}
	}
	s.get("/CodeSystem/colours").want(200)
	// The compiled parameter of that code counts, as when the package is compiled in.
	s.put("/Patient/d", `{"resourceType":"Patient","id":"d","birthDate":"1970-01-01","deceasedDateTime":"2000-01-01"}`).want(201)
	s.finds("/Patient?birthdate=1970-01-01", "d")

	t.Run("profiles of the run time are in supportedProfile", func(t *testing.T) {
		if body := string(s.in(t).get("/metadata").want(200).body); !strings.Contains(body, `"supportedProfile"`) || !strings.Contains(body, "http://example.org/StructureDefinition/p1") {
			t.Error("the capability statement does not list http://example.org/StructureDefinition/p1")
		}
	})
	t.Run("installed packages are listed", func(t *testing.T) {
		s.in(t).get("/$packages").want(200).equal("parameter.0.part.0.valueString", "example.ig").equal("parameter.0.part.4.valueInteger", "2")
	})
	t.Run("a package is removed, but for what was changed since", func(t *testing.T) {
		s := s.in(t)
		s.put("/CodeSystem/colours", fmt.Sprintf(packageCodes, "2", "blue")).want(200)
		s.post("/$remove-package?name=other", "").issue(404, "not-found", "example.ig@1.0.0")
		s.get("/$remove-package?name=example.ig").want(405)
		s.post("/$remove-package?name=example.ig&dry-run=true", "").want(200).equal("parameter.3.valueInteger", "1").equal("parameter.4.valueInteger", "1")
		s.get("/StructureDefinition/p1").want(200)
		s.post("/$remove-package?name=example.ig", "").want(200).equal("parameter.3.valueInteger", "1").equal("parameter.4.valueInteger", "1")
		s.get("/StructureDefinition/p1").want(410)
		s.get("/CodeSystem/colours").want(200)
		if body := string(s.get("/$packages").want(200).body); strings.Contains(body, "example.ig") {
			t.Errorf("the package is still listed: %s", body)
		}
		if body := string(s.get("/metadata").want(200).body); strings.Contains(body, "http://example.org/StructureDefinition/p1") {
			t.Error("the capability statement still lists the removed profile")
		}
	})
}

// US Core 5 and 6 write valueDateTime where FHIRPath has value.ofType(dateTime), and
// define R4's own search parameters once more.
func TestInstallPackageAsPublished(t *testing.T) {
	s := start(t)
	const asserted = "Condition.extension.where(url = 'http://hl7.org/fhir/StructureDefinition/condition-assertedDate').valueDateTime"
	again := func(id, code, typ, base, expression string) string {
		return strings.Replace(parameter(id, code, typ, base, expression), "http://example.org/SearchParameter/", "http://hl7.org/fhir/us/core/SearchParameter/", 1)
	}
	a := s.install(packed(t, "package/package.json", packageJSON,
		"package/SearchParameter-asserted-date.json", parameter("asserted", "asserted-date", "date", "Condition", asserted),
		"package/SearchParameter-id.json", again("us-core-patient-id", "_id", "token", "Patient", "Patient.id"),
		"package/SearchParameter-status.json", again("us-core-clinical", "clinical-status", "token", "Condition", "Condition.clinicalStatus"),
		"package/SearchParameter-patient.json", again("us-core-condition-patient", "patient", "reference", "Condition", "Condition.subject.where(resolve() is Patient)"),
		"package/SearchParameter-mine.json", parameter("mine", "birthdate", "date", "Patient", "Patient.deceased.ofType(dateTime)")), "").want(200)
	body := string(a.body)
	for _, word := range []string{`"name":"create","valueInteger":1`, `"name":"refused","valueInteger":1`, `"name":"existing","valueInteger":3`, "already part of R4",
		`"valueCode":"warning"`, "package/SearchParameter-asserted-date.json", "value.ofType(dateTime)", "Patient.birthdate"} {
		if !strings.Contains(body, word) {
			t.Errorf("the answer does not say %q: %s", word, clip(a.body))
		}
	}
	if strings.Contains(body, "Condition.clinical-status") {
		t.Errorf("a search parameter of R4 is reported as a conflict: %s", body)
	}
	s.put("/Condition/c", `{"resourceType":"Condition","id":"c","subject":{"display":"x"},"extension":[
		{"url":"http://example.org/other","valueDateTime":"2001-01-01"},{"url":"http://hl7.org/fhir/StructureDefinition/condition-assertedDate","valueDateTime":"2020-02-03"}]}`).want(201)
	s.indexed("/Condition?asserted-date=2020-02-03")
	s.finds("/Condition?asserted-date=2020-02-03", "c")
	s.finds("/Condition?asserted-date=2001-01-01")

	for name, c := range map[string]struct{ body, query string }{
		"a choice of several types": {parameter("measured", "measured", "quantity", "Observation", "Observation.valueQuantity"), "measured=5"},
		"a condition":               {parameter("if-string", "if-string", "token", "Observation", "Observation.where(valueQuantity.value > 3).status"), "if-string=final"},
		"a path without its type":   {parameter("bare", "bare", "quantity", "Observation", "valueQuantity | component.valueQuantity"), "bare=5"},
		"an element below it":       {parameter("unit", "unit", "token", "Observation", "Observation.valueQuantity.unit"), "unit=mg"},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			s.put("/Observation/o", `{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"},"valueQuantity":{"value":5,"unit":"mg"}}`)
			s.post("/SearchParameter/$validate", c.body).want(200).equal("issue.0.severity", "warning").equal("issue.0.expression.0", "SearchParameter.expression")
			s.post("/SearchParameter", c.body).want(201)
			s.indexed("/Observation?" + c.query)
			s.finds("/Observation?"+c.query, "o")
		})
	}
	t.Run("a type that the choice does not have is refused", func(t *testing.T) {
		s.in(t).post("/SearchParameter", parameter("no", "no", "reference", "Observation", "Observation.valueReference")).issue(400, "invalid", "valueReference")
	})
	t.Run("a composite's component", func(t *testing.T) {
		s := s.in(t)
		body := `{"resourceType":"SearchParameter","url":"http://example.org/SearchParameter/pair","name":"Pair","status":"active","description":"x","code":"pair","base":["Observation"],"type":"composite","expression":"Observation",
			"component":[{"definition":"http://hl7.org/fhir/SearchParameter/clinical-code","expression":"code"},{"definition":"http://hl7.org/fhir/SearchParameter/Observation-value-quantity","expression":"valueQuantity"}]}`
		s.post("/SearchParameter/$validate", body).want(200).equal("issue.0.severity", "warning").equal("issue.0.expression.0", "SearchParameter.component[1].expression")
		s.post("/SearchParameter", body).want(201)
	})
}

func TestReindexOnDemand(t *testing.T) {
	s := start(t)
	for i := range 3 {
		s.put(fmt.Sprintf("/Patient/r%d", i), fmt.Sprintf(patientWithBoth, fmt.Sprintf("r%d", i), "1970-01-01", "M", 1, "de", "Kin")).want(201)
	}
	s.post("/$reindex?type=Patent", "").issue(400, "invalid", "Patent")
	s.post("/$reindex?type=Patient&parameter=none", "").issue(400, "invalid", "none")
	s.post("/$reindex?type=Patient&parameter=birthdate", "").want(202).equal("parameter.0.part.1.valueCode", "Patient")
	s.post("/$reindex", `{"resourceType":"Parameters","parameter":[{"name":"type","valueCode":"Patient"}]}`).want(202)
	eventually(t, "the jobs are done", func() bool {
		a := s.get("/$reindex").want(200)
		return a.len("parameter") == 2 && a.str("parameter.0.part.2.valueCode") == "done" && a.str("parameter.1.part.2.valueCode") == "done"
	})
	body := string(s.get("/$reindex").body)
	for _, want := range []string{`"name":"total","valueDecimal":3`, `"name":"done","valueDecimal":3`, `"name":"changed","valueDecimal":0`} {
		if !strings.Contains(body, want) {
			t.Errorf("the state does not say %s: %s", want, body)
		}
	}
	s.finds("/Patient?birthdate=1970-01-01", "r0", "r1", "r2")
	s.get("/Patient/r0").want(200).equal("meta.versionId", "1")
}

// A SearchParameter needs the elements that the contract names, and no more.
func TestSearchParameterLeast(t *testing.T) {
	s := start(t)
	s.post("/SearchParameter", `{"resourceType":"SearchParameter","url":"http://example.org/least","code":"least","type":"string","base":["Patient"],"expression":"Patient.contact.name.family"}`).want(201)
	s.put("/Patient/p", fmt.Sprintf(patientWithBoth, "p", "1970-01-01", "M", 1, "de", "Kin")).want(201)
	s.finds("/Patient?least=kin", "p")
	s.post("/SearchParameter", `{"resourceType":"SearchParameter","url":"http://example.org/none","code":"none","type":"string","base":["Patient"]}`).want(201)
	s.get("/Patient?none=x").issue(400, "not-supported", "no expression")
}

// A profile that arrives at run time is applied, by every server, and so is its
// next version.
func TestProfileAtRunTime(t *testing.T) {
	a, b := pair(t)
	profile := func(element string) string {
		return fmt.Sprintf(`{"resourceType":"StructureDefinition","id":"born","url":"http://example.org/StructureDefinition/born","name":"Born","status":"active",
			"kind":"resource","abstract":false,"type":"Patient","baseDefinition":"http://hl7.org/fhir/StructureDefinition/Patient","derivation":"constraint",
			"differential":{"element":[{"id":"Patient.%[1]s","path":"Patient.%[1]s","min":1}]}}`, element)
	}
	const patient = `{"resourceType":"Patient","meta":{"profile":["http://example.org/StructureDefinition/born"]},"gender":"male"}`
	a.post("/Patient", patient).want(201) // nobody knows the profile
	b.post("/Patient", patient).want(201)
	a.install(packed(t, "package/package.json", packageJSON, "package/StructureDefinition-born.json", profile("birthDate")), "").want(200)
	a.post("/Patient", patient).issue(422, "invalid", "birthDate")
	eventually(t, "the other server applies the profile", func() bool { return b.post("/Patient", patient).status == 422 })
	b.put("/StructureDefinition/born", profile("gender")).want(200)
	b.post("/Patient", patient).want(201)
	eventually(t, "the other server applies the new version", func() bool { return a.post("/Patient", patient).status == 201 })
}

// GET /metadata names the requirements for servers and the guides of packages; of several versions of a
// package, the list of packages says what a later one replaced.
func TestGuidesOfPackages(t *testing.T) {
	a, b := pair(t)
	const (
		requirements = `{"resourceType":"CapabilityStatement","id":"%[1]s","url":"http://example.org/CapabilityStatement/%[1]s","version":"%[4]s","status":"active","date":"2026-01-01","description":"x",` +
			`"kind":"%[2]s","fhirVersion":"4.0.1","format":["json"],"rest":[{"mode":"%[3]s"}]%[5]s}`
		guide = `{"resourceType":"ImplementationGuide","id":"g","url":"http://example.org/ImplementationGuide/g","version":"%s","name":"G","status":"active","packageId":"example.ig","fhirVersion":["4.0.1"]}`
		own   = "http://hl7.org/fhir/uv/bulkdata/CapabilityStatement/bulk-data"
	)
	archive := func(version string, more ...string) string {
		return packed(t, append([]string{"package/package.json", strings.Replace(packageJSON, "1.0.0", version, 1),
			"package/CapabilityStatement-s.json", fmt.Sprintf(requirements, "s", "requirements", "server", version, ""),
			"package/CapabilityStatement-c.json", fmt.Sprintf(requirements, "c", "requirements", "client", version, ""),
			"package/CapabilityStatement-i.json", fmt.Sprintf(requirements, "i", "instance", "server", version, `,"implementation":{"description":"x"}`),
			"package/ImplementationGuide-g.json", fmt.Sprintf(guide, version)}, more...)...)
	}
	texts := func(s *service, path string) []string {
		list, _ := s.get("/metadata").want(200).at(path).([]any)
		var out []string
		for _, v := range list {
			out = append(out, fmt.Sprint(v))
		}
		return out
	}
	has := func(s *service, path, url string) bool { return slices.Contains(texts(s, path), url) }

	if list := texts(a, "implementationGuide"); list != nil {
		t.Errorf("implementationGuide is %v, want none", list)
	}
	a.post("/CapabilityStatement", fmt.Sprintf(requirements, "alone", "requirements", "server", "1", "")).want(201)
	a.install(archive("1.0.0", "package/ValueSet-colours.json", packageCodeSet), "").want(200)
	if got, want := texts(a, "implementationGuide"), []string{"http://example.org/ImplementationGuide/g"}; !slices.Equal(got, want) {
		t.Errorf("implementationGuide is %v, want %v", got, want)
	}
	for url, want := range map[string]bool{"CapabilityStatement/s": true, "CapabilityStatement/c": false, "CapabilityStatement/i": false, "CapabilityStatement/alone": false} {
		if got := has(a, "instantiates", "http://example.org/"+url); got != want {
			t.Errorf("instantiates has %s: %v, want %v", url, got, want)
		}
	}
	if !has(a, "instantiates", own) {
		t.Errorf("instantiates is %v, without %s", texts(a, "instantiates"), own)
	}
	eventually(t, "the other server names the requirements", func() bool { return has(b, "instantiates", "http://example.org/CapabilityStatement/s") })

	t.Run("a setting takes the place of all", func(t *testing.T) {
		a := a.in(t)
		a.do("PUT", "/admin/config/server/instantiates", `{"value":["not a canonical"]}`).want(400)
		a.do("PUT", "/admin/config/server/instantiates", `{"value":["http://example.org/mine|1"]}`).want(200)
		if got, want := texts(a, "instantiates"), []string{"http://example.org/mine|1"}; !slices.Equal(got, want) {
			t.Errorf("instantiates is %v, want %v", got, want)
		}
		a.do("DELETE", "/admin/config/server/instantiates", "").want(200)
	})
	t.Run("packages say which of their definitions were replaced", func(t *testing.T) {
		a := a.in(t)
		a.install(archive("2.0.0"), "").want(200)
		list := a.get("/$packages").want(200)
		list.equal("parameter.0.part.1.valueString", "1.0.0").equal("parameter.0.part.5.valueCode", "partly-replaced").
			equal("parameter.0.part.6.name", "replaced").equal("parameter.0.part.6.part.0.valueReference.reference", "CapabilityStatement/c").
			equal("parameter.0.part.6.part.1.valueString", "2.0.0")
		if n := list.len("parameter.0.part"); n != 10 {
			t.Errorf("the first version has %d parts, want 10 with four replaced definitions: %s", n, clip(list.body))
		}
		list.equal("parameter.1.part.1.valueString", "2.0.0").equal("parameter.1.part.5.valueCode", "installed")
		if n := list.len("parameter.1.part"); n != 6 {
			t.Errorf("the second version has %d parts, want 6", n)
		}
		a.install(archive("3.0.0"), "").want(200)
		a.get("/$packages").want(200).equal("parameter.1.part.5.valueCode", "replaced").equal("parameter.0.part.6.part.1.valueString", "3.0.0")
	})
	t.Run("a removed package is named no more", func(t *testing.T) {
		a := a.in(t)
		for _, version := range []string{"3.0.0", "2.0.0", "1.0.0"} {
			a.post("/$remove-package?name=example.ig&version="+version, "").want(200)
		}
		if has(a, "instantiates", "http://example.org/CapabilityStatement/s") || texts(a, "implementationGuide") != nil {
			t.Errorf("instantiates is %v, implementationGuide %v", texts(a, "instantiates"), texts(a, "implementationGuide"))
		}
	})
}

package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// setting is a key of the configuration, as /admin/config answers it.
type setting struct {
	Key, Category, Source, Description string
	Value, Default                     json.RawMessage
	Secret                             bool `json:"is_secret"`
	Restart                            bool `json:"restart_required"`
}

// settingText is a value as a form has it: a string without quotes.
func settingText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var line bytes.Buffer
	if json.Compact(&line, raw) != nil {
		return string(raw)
	}
	return line.String()
}

// settings lists the configuration in force, and the switches.
func (v *visit) settings(_ []string) error {
	var list []setting
	if err := v.get("/admin/config", &list); err != nil {
		return err
	}
	var p panel
	features, err := v.featuresTable()
	if err != nil {
		return err
	}
	p.Tables = []table{features}
	byCategory := make(map[string]int)
	for _, s := range list {
		i, ok := byCategory[s.Category]
		if !ok {
			i = len(p.Tables)
			byCategory[s.Category] = i
			p.Tables = append(p.Tables, table{Name: s.Category, Class: "keys", Head: columns(v.T("Key"), v.T("Value"), v.T("Source"))})
		}
		p.Tables[i].Rows = append(p.Tables[i].Rows, []cell{linkCell(s.Key, "/console/settings/"+escape(s.Key)), {Text: clipText(settingText(s.Value)), Class: "wrap"}, textCell(s.Source)})
	}
	return v.showPanel("settings", v.T("Settings"), p)
}

// featuresTable is the table Features.
func (v *visit) featuresTable() (table, error) {
	var list []struct {
		Name, Description string
		Enabled           bool
	}
	t := table{Name: v.T("Features"), Head: columns(v.T("Name"), v.T("Description"), v.T("State"), v.T("Action"))}
	if err := v.get("/admin/features", &list); err != nil {
		return t, err
	}
	for _, f := range list {
		state, label, on := "off", v.T("Turn on %s", f.Name), "true"
		if f.Enabled {
			state, label, on = "on", v.T("Turn off %s", f.Name), "false"
		}
		t.Rows = append(t.Rows, []cell{{Text: f.Name, Head: true}, textCell(f.Description), {Tag: state}, {Buttons: []button{v.post(label, "/console/settings", "flag", f.Name, "on", on)}}})
	}
	return t, nil
}

// switchFeature turns a feature on or off.
func (v *visit) switchFeature(_ []string) error {
	name := v.form.Get("flag")
	if err := v.send(http.MethodPut, "/admin/features/"+escape(name), map[string]bool{"enabled": v.form.Get("on") == "true"}, nil); err != nil {
		return err
	}
	said := v.T("%s is off.", name)
	if v.form.Get("on") == "true" {
		said = v.T("%s is on.", name)
	}
	return v.done("/console/settings", said)
}

// setting shows and changes one key.
func (v *visit) setting(parts []string) error {
	key := parts[0]
	category, name, ok := strings.Cut(key, ".")
	if !ok {
		return errNoPage
	}
	var list []setting
	if err := v.get("/admin/config", &list); err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(s setting) bool { return s.Key == key })
	if i < 0 {
		return errNoPage
	}
	s := list[i]
	value := settingText(s.Value)
	if v.r.Method == http.MethodPost {
		path := "/admin/config/" + escape(category) + "/" + escape(name)
		var err error
		if v.form.Get("action") == "default" {
			err = v.send(http.MethodDelete, path, nil, nil)
		} else {
			value = v.form.Get("value")
			var sent any = value
			if b := s.Value; len(b) > 0 && b[0] != '"' && json.Valid([]byte(value)) {
				sent = json.RawMessage(value)
			}
			err = v.send(http.MethodPut, path, map[string]any{"value": sent}, nil)
		}
		if err == nil {
			return v.done("/console/settings/"+escape(key), v.T("%s is stored.", key))
		}
		if err := v.refuse(err); err != nil {
			return err
		}
	}
	if s.Secret && v.r.Method != http.MethodPost {
		value = ""
	}
	f := v.newForm("/console/settings/"+escape(key), v.T("Save"), field{Label: v.T("Value"), Name: "value", Value: value, Wide: true})
	if strings.HasPrefix(value, "[") || strings.Contains(value, "\n") {
		f.Fields[0].Kind = "textarea"
	}
	f.Buttons[0].Name, f.Buttons[0].Value = "action", "save"
	f.Buttons = append(f.Buttons, formButton{Label: v.T("Use the default"), Name: "action", Value: "default"})
	p := panel{Title: v.T("Settings"), Forms: []panelForm{f}, Facts: [][2]string{{v.T("Description"), s.Description}, {v.T("Source"), s.Source}, {v.T("Default"), settingText(s.Default)}, {v.T("Needs a restart"), v.yesNo(s.Restart)}},
		Links: []navItem{{Name: v.T("Settings"), Path: "/console/settings"}}}
	return v.showPanel("settings", key, p)
}

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"go.yaml.in/yaml/v3"

	"kiln/server"
	"kiln/server/settings"
)

// render runs the templates of the chart with the functions of Helm that they use.
// Helm itself is not a dependency: its engine brings the client of Kubernetes.
func render(t *testing.T, change func(values map[string]any)) map[string]map[string]any {
	t.Helper()
	values, chart := make(map[string]any), make(map[string]any)
	for file, into := range map[string]any{"helm/values.yaml": &values, "helm/Chart.yaml": &chart} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if change != nil {
		change(values)
	}
	indent := func(n int, s string) string {
		pad := strings.Repeat(" ", n)
		return pad + strings.ReplaceAll(s, "\n", "\n"+pad)
	}
	root := template.New("").Option("missingkey=error")
	root.Funcs(template.FuncMap{
		"include": func(name string, data any) (string, error) {
			var b bytes.Buffer
			err := root.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"nindent":    func(n int, s string) string { return "\n" + indent(n, s) },
		"quote":      func(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) },
		"trunc":      func(n int, s string) string { return s[:min(n, len(s))] },
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"default": func(d, v any) any {
			if v == nil || v == "" {
				return d
			}
			return v
		},
		"mul": func(a, b int) int { return a * b },
		"div": func(a, b int) int { return a / b },
		"join": func(between string, list []any) string {
			var texts []string
			for _, v := range list {
				texts = append(texts, fmt.Sprint(v))
			}
			return strings.Join(texts, between)
		},
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
	})
	files, err := filepath.Glob("helm/templates/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates (%v)", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := root.New(filepath.Base(f)).Parse(string(text)); err != nil {
			t.Fatal(err)
		}
	}
	data := map[string]any{
		"Values": values, "Release": map[string]any{"Name": "test", "Service": "Helm"},
		"Chart": map[string]any{"Name": chart["name"], "AppVersion": chart["appVersion"], "Version": chart["version"]},
	}
	out := make(map[string]map[string]any)
	for _, f := range files {
		if strings.HasSuffix(f, ".tpl") {
			continue
		}
		var b bytes.Buffer
		if err := root.ExecuteTemplate(&b, filepath.Base(f), data); err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := yaml.Unmarshal(b.Bytes(), &object); err != nil {
			t.Fatalf("%s: %v\n%s", f, err, b.String())
		}
		if object != nil {
			if object["apiVersion"] == nil || object["kind"] == nil || at(object, "metadata.name") == nil {
				t.Errorf("%s has no apiVersion, kind or name", f)
			}
			out[object["kind"].(string)] = object
		}
	}
	return out
}

// at is the value at a path of keys and indices, nil where there is none.
func at(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// The chart renders; its servers are locked up, found by their service, and
// configured by keys that there are.
// Contract, Operations: deploy: the Helm chart.
func TestChart(t *testing.T) {
	t.Parallel()
	objects := render(t, nil)
	pod := at(objects["Deployment"], "spec.template.spec")
	for path, want := range map[string]any{
		"securityContext.runAsNonRoot": true, "automountServiceAccountToken": false,
		"containers.0.securityContext.readOnlyRootFilesystem": true, "containers.0.securityContext.allowPrivilegeEscalation": false,
		"containers.0.securityContext.capabilities.drop.0": "ALL", "containers.0.readinessProbe.httpGet.path": "/health/ready",
		"containers.0.volumeMounts.1.mountPath": "/var/lib/kiln", "volumes.1.name": "files",
		"containers.0.livenessProbe.httpGet.path": "/health/live", "containers.0.image": "kiln:0.1.0", "securityContext.seccompProfile.type": "RuntimeDefault",
	} {
		if got := at(pod, path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	labels := fmt.Sprint(at(objects["Deployment"], "spec.template.metadata.labels"))
	for _, selector := range []any{at(objects["Deployment"], "spec.selector.matchLabels"), at(objects["Service"], "spec.selector"), at(objects["PodDisruptionBudget"], "spec.selector.matchLabels")} {
		if fmt.Sprint(selector) != labels {
			t.Errorf("the selector %v is not the labels %v", selector, labels)
		}
	}
	known := make(map[string]bool)
	for _, k := range settings.Keys[server.Config]() {
		known["KILN_"+strings.ToUpper(strings.ReplaceAll(k.Name, ".", "__"))] = true
	}
	env, _ := at(pod, "containers.0.env").([]any)
	for i := range env {
		if name := at(env, fmt.Sprint(i)+".name").(string); !known[name] && name != "GOMEMLIMIT" {
			t.Errorf("%s is no key of the configuration", name)
		}
	}
	if len(env) < 3 || objects["Ingress"] != nil {
		t.Errorf("%d variables; an ingress that nobody asked for: %v", len(env), objects["Ingress"] != nil)
	}
	objects = render(t, func(v map[string]any) {
		v["ingress"] = map[string]any{"enabled": true, "className": "nginx", "host": "h.example.org", "tlsSecret": "cert"}
		v["metrics"].(map[string]any)["annotations"] = true
		v["image"] = map[string]any{"repository": "r/kiln", "tag": "1.2", "pullPolicy": "Always"}
	})
	if at(objects["Ingress"], "spec.tls.0.secretName") != "cert" || at(objects["Ingress"], "spec.rules.0.host") != "h.example.org" {
		t.Errorf("the ingress is %v", objects["Ingress"])
	}
	if at(objects["Deployment"], "spec.template.metadata.annotations") == nil || at(objects["Deployment"], "spec.template.spec.containers.0.image") != "r/kiln:1.2" {
		t.Error("annotations or image are not those of the values")
	}
	if kinds := len(objects); !slices.Contains([]int{4}, kinds) {
		t.Errorf("%d objects, want 4", kinds)
	}
}

// The values of the chart reach the pod: memory, preStop, proxies, additions, metrics.
// Contract, Operations: deploy: the Helm chart.
func TestChartValues(t *testing.T) {
	t.Parallel()
	objects := render(t, func(v map[string]any) {
		v["memory"] = map[string]any{"limit": 2000, "search": 512}
		v["resources"] = map[string]any{"requests": map[string]any{"cpu": "1"}, "limits": map[string]any{"cpu": "2"}}
		v["trustedProxies"] = []any{"10.0.0.0/8", "192.168.1.1"}
		v["extraEnv"] = []any{map[string]any{"name": "EXTRA", "value": "x"}}
		v["extraEnvFrom"] = []any{map[string]any{"configMapRef": map[string]any{"name": "more"}}}
		v["extraVolumes"] = []any{map[string]any{"name": "bulk", "emptyDir": map[string]any{}}}
		v["extraVolumeMounts"] = []any{map[string]any{"name": "bulk", "mountPath": "/bulk"}}
		v["bulk"] = map[string]any{"existingClaim": "files"}
		v["affinity"] = map[string]any{"podAntiAffinity": map[string]any{"x": "y"}}
		v["nodeSelector"] = map[string]any{"disk": "ssd"}
		v["tolerations"] = []any{map[string]any{"key": "db"}}
		v["topologySpreadConstraints"] = []any{map[string]any{"maxSkew": 1}}
		v["preStopSeconds"], v["terminationGracePeriodSeconds"] = 7, 60
		v["metrics"] = map[string]any{"annotations": true, "port": 9100, "serviceMonitor": map[string]any{"enabled": true, "interval": "15s", "labels": map[string]any{"release": "prometheus"},
			"tokenSecret": map[string]any{"name": "scrape", "key": "token"}}}
	})
	pod := at(objects["Deployment"], "spec.template.spec")
	env := make(map[string]string)
	list, _ := at(pod, "containers.0.env").([]any)
	for _, e := range list {
		env[fmt.Sprint(at(e, "name"))] = fmt.Sprint(at(e, "value"))
	}
	for name, want := range map[string]string{"KILN_SEARCH__MEMORY_MB": "512", "GOMEMLIMIT": "1800MiB", "KILN_SERVER__TRUSTED_PROXIES": "10.0.0.0/8,192.168.1.1",
		"EXTRA": "x", "KILN_BULK__DIRECTORY": "/var/lib/kiln/bulk", "KILN_SERVER__METRICS_LISTEN": "0.0.0.0:9100"} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	for path, want := range map[string]any{
		"containers.0.resources.limits.memory": "2000Mi", "containers.0.resources.limits.cpu": "2", "containers.0.resources.requests.cpu": "1",
		"containers.0.lifecycle.preStop.exec.command.1": "7", "terminationGracePeriodSeconds": 60,
		"containers.0.envFrom.0.secretRef.name": "kiln", "containers.0.envFrom.1.configMapRef.name": "more",
		"containers.0.volumeMounts.1.mountPath": "/bulk", "volumes.1.name": "bulk", "affinity.podAntiAffinity.x": "y", "nodeSelector.disk": "ssd",
		"containers.0.volumeMounts.2.mountPath": "/var/lib/kiln", "volumes.2.persistentVolumeClaim.claimName": "files", "securityContext.fsGroup": 65532,
		"tolerations.0.key": "db", "topologySpreadConstraints.0.maxSkew": 1, "containers.0.ports.1.containerPort": 9100,
	} {
		if got := at(pod, path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	monitor := objects["ServiceMonitor"]
	for path, want := range map[string]any{
		"spec.endpoints.0.port": "metrics", "spec.endpoints.0.authorization.credentials.name": "scrape", "spec.endpoints.0.interval": "15s", "metadata.labels.release": "prometheus",
	} {
		if got := at(monitor, path); got != want {
			t.Errorf("ServiceMonitor: %s is %v, want %v", path, got, want)
		}
	}
	labels, _ := at(objects["Service"], "metadata.labels").(map[string]any)
	selector, _ := at(monitor, "spec.selector.matchLabels").(map[string]any)
	for name, value := range selector {
		if labels[name] != value {
			t.Errorf("the ServiceMonitor selects %s=%v, and the Service has %v", name, value, labels[name])
		}
	}
	if at(objects["Service"], "spec.ports.1.targetPort") != "metrics" || len(selector) == 0 {
		t.Error("the Service does not have the port of metrics")
	}
}

// Helm itself renders the chart, where it is installed.
func TestHelm(t *testing.T) {
	t.Parallel()
	helm, err := exec.LookPath("helm")
	if err != nil {
		t.Skip("helm is not installed")
	}
	for _, args := range [][]string{{"lint", "helm"}, {"template", "test", "helm"}, {"template", "test", "helm", "--set", "metrics.port=9100,metrics.serviceMonitor.enabled=true,ingress.enabled=true"},
		{"template", "test", "helm", "--set", "bulk.existingClaim=c,trustedProxies={10.0.0.0/8},memory.limit=65536,extraEnv[0].name=A,extraEnvFrom[0].secretRef.name=s,extraVolumes[0].name=v,extraVolumeMounts[0].name=v,tolerations[0].key=k"}} {
		if out, err := exec.Command(helm, args...).CombinedOutput(); err != nil {
			t.Errorf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

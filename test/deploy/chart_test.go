//go:build linux

package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// template returns the output of helm template.
func template(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, append([]string{
		tool("helm"), "template", "sluice", projectPath("deploy/helm/sluice"),
		"--namespace=kube-system",
	}, args...)...)
}

// sources splits the output of helm by the template file.
func sources(text string) map[string]string {
	out := map[string]string{}
	for doc := range strings.SplitSeq(text, "---\n") {
		head, body, found := strings.Cut(doc, "\n")
		name, is := strings.CutPrefix(head, "# Source: sluice/templates/")
		if !found || !is {
			continue
		}
		if out[name] != "" {
			out[name] += "---\n"
		}
		out[name] += strings.TrimRight(body, "\n") + "\n"
	}
	return out
}

const madeFrom = "# Made from deploy/helm/sluice; test/deploy makes it anew.\n"

// The manifests are generated from the chart, so that both stay equal.
func TestManifestsAreTheChart(t *testing.T) {
	plain := sources(template(t))
	files := map[string]string{
		"monitoring/podmonitor.yaml": sources(template(t, "--set=metrics.scrape=podMonitor"))["podmonitor.yaml"],
		"monitoring/configmap.yaml":  sources(template(t, "--set=metrics.scrape=podMonitor"))["configmap.yaml"],
		"sysctls/configmap.yaml":     sources(template(t, "--set=sysctls.enabled=true"))["configmap.yaml"],

		"components/iptables/configmap.yaml": sources(template(t, "--set=config.mode=iptables"))["configmap.yaml"],
		"components/ebpf/configmap.yaml":     sources(template(t, "--set=config.mode=ebpf"))["configmap.yaml"],

		"components/userspace/configmap.yaml": sources(template(t, "--set=config.mode=userspace"))["configmap.yaml"],
	}
	for name, text := range plain {
		files["base/"+name] = text
	}
	for name, want := range files {
		path := filepath.Join(projectPath("deploy/kubernetes"), name)
		want = madeFrom + want
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s differs from the chart (-chart +file); regenerate it with `go test ./test/deploy -run "+
				"TestManifestsAreTheChart -update`:\n%s", name, diff)
		}
	}
}

// objects parses manifests into objects by kind and name.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		doc += "\n" // SplitSeq removed the last line end
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("read manifest: %v in\n%s", err, doc)
		}
		if o == nil {
			continue
		}
		meta, _ := o["metadata"].(map[string]any)
		key, _ := o["kind"].(string)
		name, _ := meta["name"].(string)
		out[key+" "+name] = o
	}
	return out
}

// Each overlay has the same output as helm with the corresponding values.
func TestOverlaysAreTheChart(t *testing.T) {
	for _, tt := range []struct {
		overlay string
		args    []string
	}{
		{"base", nil},
		{"canary", []string{"--set=nodeSelector.service-proxy=sluice"}},
		{"monitoring", []string{"--set=metrics.scrape=podMonitor"}},
		{"sysctls", []string{"--set=sysctls.enabled=true"}},
		{"iptables", []string{"--set=config.mode=iptables"}},
		{"ebpf", []string{"--set=config.mode=ebpf"}},
		{"userspace", []string{"--set=config.mode=userspace"}},
		{"canary-ebpf", []string{"--set=config.mode=ebpf", "--set=nodeSelector.service-proxy=sluice"}},
		{"canary-userspace", []string{"--set=config.mode=userspace", "--set=nodeSelector.service-proxy=sluice"}},
		{"canary-iptables", []string{"--set=config.mode=iptables", "--set=nodeSelector.service-proxy=sluice"}},
	} {
		t.Run(tt.overlay, func(t *testing.T) {
			got := objects(t, run(t, tool("kubectl"), "kustomize", filepath.Join(projectPath("deploy/kubernetes"), tt.overlay)))
			want := objects(t, template(t, tt.args...))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-helm +kustomize):\n%s", diff)
			}
		})
	}
}

// The static pods equal the pods of the DaemonSet, except for the source of their files.
func TestStaticPodsAreThoseOfTheDaemonSet(t *testing.T) {
	for name, mode := range map[string]string{"sluice.yaml": "nftables", "sluice-iptables.yaml": "iptables"} {
		t.Run(name, func(t *testing.T) {
			file, err := os.ReadFile(filepath.Join(projectPath("deploy/static-pod"), name))
			if err != nil {
				t.Fatal(err)
			}
			got := subObject(objects(t, string(file))["Pod sluice"], "spec")
			want := subObject(objects(t, template(t, "--set=config.mode="+mode))["DaemonSet sluice"], "spec", "template", "spec")
			for _, key := range []string{"serviceAccountName", "nodeSelector"} {
				delete(want, key)
			}
			env := func(spec map[string]any) *any {
				c, _ := spec["containers"].([]any)
				first, _ := c[0].(map[string]any)
				list, _ := first["env"].([]any)
				first["env"] = list[:1]
				return &list[0]
			}
			env(want)
			if name := *env(got); cmp.Equal(name, nil) {
				t.Error("the static pod does not set the node name")
			}
			for _, spec := range []map[string]any{got, want} { // the last volume has the files
				volumes, _ := spec["volumes"].([]any)
				spec["volumes"] = volumes[:len(volumes)-1]
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-DaemonSet +static pod):\n%s", diff)
			}
		})
	}
}

func subObject(o map[string]any, path ...string) map[string]any {
	for _, p := range path {
		o, _ = o[p].(map[string]any)
	}
	return o
}

func TestChartIsClean(t *testing.T) {
	out := run(t, tool("helm"), "lint", "--strict", projectPath("deploy/helm/sluice"))
	if !strings.Contains(out, "1 chart(s) linted, 0 chart(s) failed") || strings.Contains(out, "WARNING") {
		t.Errorf("helm lint:\n%s", out)
	}
}

// A misspelled or invalid value is rejected with an error that names it.
func TestChartRejectsUnknownValues(t *testing.T) {
	for _, tt := range []struct{ set, want string }{
		{"apiserver.host=x", "apiserver"},
		{"apiServer.host=https://x", "/apiServer/host"},
		{"apiServer.port=70000", "/apiServer/port"},
		{"metrics.scrape=yes", "/metrics/scrape"},
		{"config.kind=Pod", "/config"},
		{"config.mode=ipvs", "/config/mode"},
		{"maxUnavailable=0", "/maxUnavailable"},
		{"image.pullPolicy=never", "/image/pullPolicy"},
	} {
		_, err := runCommand(t, tool("helm"), "template", projectPath("deploy/helm/sluice"), "--set="+tt.set)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("--set %s: %v, want an error about %q", tt.set, err, tt.want)
		}
	}
}

// Every value is in the table of the chart's README, with its default.
func TestChartReadmeHasEveryValue(t *testing.T) {
	text, err := os.ReadFile(projectPath("deploy/helm/sluice/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(projectPath("deploy/helm/sluice/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(readme)) {
		cells := strings.Split(line, " | ")
		if len(cells) == 3 && strings.HasPrefix(cells[0], "| `") {
			got[strings.Trim(cells[0], "|` ")] = strings.Trim(cells[1], "` ")
		}
	}
	if diff := cmp.Diff(flatten(t, "", values), got); diff != "" {
		t.Errorf("(-values.yaml +README.md):\n%s", diff)
	}
}

// flatten returns values by their path, as JSON.
func flatten(t *testing.T, prefix string, v map[string]any) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(v)) {
		path := strings.ReplaceAll(key, ".", `\.`)
		if inner, is := v[key].(map[string]any); is && len(inner) > 0 {
			maps.Copy(out, flatten(t, prefix+path+".", inner))
			continue
		}
		text, err := yaml.Marshal(v[key])
		if err != nil {
			t.Fatal(err)
		}
		out[prefix+path] = strings.ReplaceAll(strings.TrimSpace(strings.TrimPrefix(string(text), "- ")), `"`, "")
	}
	return out
}

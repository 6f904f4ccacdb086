//go:build linux

package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// rendered returns the output of helm template.
func rendered(t *testing.T, args ...string) string {
	t.Helper()
	chart := projectPath("deploy/helm/sluice")
	return run(t, append([]string{tool("helm"), "template", "sluice", chart, "--namespace=kube-system"}, args...)...)
}

// releaseLabels are those that only objects of a release of Helm have.
var releaseLabels = regexp.MustCompile(
	`(?m)^ +(helm\.sh/chart|app\.kubernetes\.io/(instance|version|managed-by)): .*\n`)

// template is rendered without the labels of the release.
func template(t *testing.T, args ...string) string {
	t.Helper()
	return releaseLabels.ReplaceAllString(rendered(t, args...), "")
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
		"components/ipvs/configmap.yaml":     sources(template(t, "--set=config.mode=ipvs"))["configmap.yaml"],
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
		{"ipvs", []string{"--set=config.mode=ipvs"}},
		{"canary-ipvs", []string{"--set=config.mode=ipvs", "--set=nodeSelector.service-proxy=sluice"}},
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
	for mode, name := range map[string]string{
		"nftables": "sluice.yaml", "iptables": "sluice-iptables.yaml", "userspace": "sluice-iptables.yaml",
		"ipvs": "sluice-ipvs.yaml", "ebpf": "sluice-ebpf.yaml",
	} {
		t.Run(mode, func(t *testing.T) {
			file, err := os.ReadFile(filepath.Join(projectPath("deploy/static-pod"), name))
			if err != nil {
				t.Fatal(err)
			}
			got := subObject(objects(t, string(file))["Pod sluice"], "spec")
			want := subObject(objects(t, template(t, "--set=config.mode="+mode))["DaemonSet sluice"], "spec", "template", "spec")
			for _, key := range []string{"serviceAccountName", "nodeSelector"} {
				delete(want, key)
			}
			for _, kind := range []string{"initContainers", "containers"} { // the address of the API server is in the kubeconfig
				list, _ := want[kind].([]any)
				for _, c := range list {
					container, _ := c.(map[string]any)
					env, _ := container["env"].([]any)
					container["env"] = env[:1]
				}
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
		{"config.mode=kernelspace", "/config/mode"},
		{"config.fooBar=1", "fooBar"},
		{"config.nftables.fooBar=1", "fooBar"},
		{"config.clusterCIDR=10.244.0.0/33", "/config/clusterCIDR"},
		{"config.healthzBindAddress=node:1", "/config/healthzBindAddress"},
		{"metrics=null", "metrics"},
		{"maxUnavailable=0", "/maxUnavailable"},
		{"image.pullPolicy=never", "/image/pullPolicy"},
	} {
		_, err := runCommand(t, tool("helm"), "template", projectPath("deploy/helm/sluice"), "--set="+tt.set)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("--set %s: %v, want an error about %q", tt.set, err, tt.want)
		}
	}
}

// Probes and scrapes are where the configuration has the servers.
func TestChartProbesTheConfiguredAddresses(t *testing.T) {
	for _, tt := range []struct {
		set             string
		host            any
		healthz, scrape string
	}{
		{"config.healthzBindAddress=127.0.0.1:9999", "127.0.0.1", "9999", "10249"},
		{"config.healthzBindAddress=[::1]:9999", "::1", "9999", "10249"},
		{"config.healthzBindAddress=::1", "::1", "10256", "10249"},
		{"config.healthzBindAddress=0.0.0.0", nil, "10256", "10249"},
		{"config.metricsBindAddress=[::]:7777", nil, "10256", "7777"},
		{"config=null", nil, "10256", "10249"},
	} {
		text := template(t, "--set=metrics.scrape=annotations", "--set="+tt.set)
		pod := subObject(objects(t, text)["DaemonSet sluice"], "spec", "template")
		if got := subObject(pod, "metadata", "annotations")["prometheus.io/port"]; got != tt.scrape {
			t.Errorf("%s: scrapes use port %v", tt.set, got)
		}
		container, _ := subObject(pod, "spec")["containers"].([]any)[0].(map[string]any)
		ports := fmt.Sprint(container["ports"])
		want := fmt.Sprintf("[map[containerPort:%s name:healthz] map[containerPort:%s name:metrics]]", tt.healthz, tt.scrape)
		if ports != want {
			t.Errorf("%s: ports %s, want %s", tt.set, ports, want)
		}
		for _, probe := range []string{"livenessProbe", "readinessProbe"} {
			if got := subObject(container, probe, "httpGet")["host"]; got != tt.host {
				t.Errorf("%s: the %s asks %v", tt.set, probe, got)
			}
		}
	}
}

// Each object has the labels of its release, which no selector uses: a later version must select the same pods.
func TestChartLabelsTheRelease(t *testing.T) {
	all := objects(t, rendered(t, "--set=apiServer.host=192.0.2.1,metrics.scrape=podMonitor",
		"--set=metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true"))
	for name, o := range all {
		labels := subObject(o, "metadata", "labels")
		for _, label := range []string{"helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/version"} {
			if text, _ := labels[label].(string); text == "" || strings.Contains(text, "+") {
				t.Errorf("%s has the label %s=%q", name, label, text)
			}
		}
	}
	want := map[string]any{"app.kubernetes.io/name": "sluice", "app.kubernetes.io/component": "proxy"}
	for _, path := range [][]string{{"spec", "selector", "matchLabels"}, {"spec", "template", "metadata", "labels"}} {
		if diff := cmp.Diff(want, subObject(all["DaemonSet sluice"], path...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", path, diff)
		}
	}
	if len(all) != 9 {
		t.Errorf("%d objects: %v", len(all), slices.Sorted(maps.Keys(all)))
	}
}

// The alerts and the dashboard arrive as they are in the files: Helm leaves their templates alone.
func TestChartHasAlertsAndDashboard(t *testing.T) {
	all := objects(t, rendered(t, "--set=metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true"))
	text, err := os.ReadFile(projectPath("deploy/helm/sluice/files/alerts.yaml"))
	must(t, err)
	var alerts map[string]any
	must(t, yaml.UnmarshalStrict(text, &alerts))
	if diff := cmp.Diff(alerts, subObject(all["PrometheusRule sluice"], "spec")); diff != "" {
		t.Errorf("(-file +chart):\n%s", diff)
	}
	dashboard, err := os.ReadFile(projectPath("deploy/helm/sluice/files/dashboard.json"))
	must(t, err)
	got, _ := subObject(all["ConfigMap sluice-dashboard"], "data")["sluice.json"].(string)
	if diff := cmp.Diff(strings.TrimSpace(string(dashboard)), strings.TrimSpace(got)); diff != "" {
		t.Errorf("(-file +chart):\n%s", diff)
	}
}

// What people add to the pod arrives in it.
func TestChartExtendsThePod(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	all := objects(t, template(t, "--set=podLabels.team=net,image.digest="+digest+",updateStrategy=OnDelete",
		"--set=external=direct",
		"--set=priorityClassName=high,extraEnv[0].name=GOGC,extraEnv[0].value=off",
		"--set=extraVolumes[0].name=more,extraVolumes[0].emptyDir.medium=Memory",
		"--set=extraVolumeMounts[0].name=more,extraVolumeMounts[0].mountPath=/more"))
	text, err := yaml.Marshal(all["DaemonSet sluice"])
	must(t, err)
	for _, want := range []string{
		"team: net\n", "@" + digest + "\n", "type: OnDelete\n", "priorityClassName: high\n", "name: GOGC\n",
		"- --external=direct\n",
		"medium: Memory\n        name: more\n", "mountPath: /more\n          name: more\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A value that is null leaves its field out.
func TestChartWithoutFields(t *testing.T) {
	for _, field := range []string{"nodeSelector", "tolerations", "affinity"} {
		pod := subObject(objects(t, template(t, "--set="+field+"=null"))["DaemonSet sluice"], "spec", "template", "spec")
		if _, is := pod[field]; is {
			t.Errorf("%s=null: the pod has %v", field, pod[field])
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

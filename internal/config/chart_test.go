package config

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// The chart refuses what the daemon would refuse, as far as a schema can express it: the schema of the value `config`
// is made from the fields of KubeProxyConfiguration.
func TestChartKnowsTheConfiguration(t *testing.T) {
	const path = "../../deploy/helm/sluice/values.schema.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var chart map[string]any
	if err := json.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	values := chart["properties"].(map[string]any)
	got := values["config"]
	values["config"] = chartSchema(t)
	wanted, err := json.MarshalIndent(chart, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, append(wanted, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(values["config"], got); diff != "" {
		t.Errorf("go test ./internal/config -run TestChartKnows -update writes it (-fields +schema):\n%s", diff)
	}
}

// chartSchema returns the schema of the chart's value `config`, as encoding/json decodes it.
func chartSchema(t *testing.T) map[string]any {
	t.Helper()
	root := schemaOf(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	fields := root["properties"].(map[string]any)
	delete(fields, "kind") // the chart has both
	delete(fields, "apiVersion")
	modes := []string{"", "nftables", "iptables", "ipvs", "ebpf", "userspace"} // that the chart has
	fields["mode"] = map[string]any{"enum": modes}
	for _, f := range removedFields() {
		parent := fields
		above, name, nested := strings.Cut(f.name, ".")
		if nested {
			parent = fields[above].(map[string]any)["properties"].(map[string]any)
		} else {
			name = above
		}
		parent[name] = map[string]any{} // it has no effect, or a warning
	}
	text, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Patterns of texts, in the syntax that JSON Schema and RE2 share.
const (
	octet    = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	ipv4     = octet + `(\.` + octet + `){3}`
	ipv6     = `[0-9a-fA-F]*:[0-9a-fA-F:.]*`
	cidr     = `(` + ipv4 + `/([12]?[0-9]|3[0-2])|` + ipv6 + `/([1-9]?[0-9]|1[01][0-9]|12[0-8]))`
	period   = `(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)`
	addrPort = `(` + ipv4 + `(:[0-9]{1,5})?|` + ipv6 + `|\[` + ipv6 + `\]:[0-9]{1,5})`
)

// patternOf returns the pattern of texts in a field; empty: any text.
func patternOf(path string) string {
	switch path {
	case "clusterCIDR":
		return `^(` + cidr + `(, *` + cidr + `)*)?$`
	case "nodePortAddresses[]":
		return `^(primary|localhost|all|` + cidr + `)$`
	case "ipvs.excludeCIDRs[]":
		return `^` + cidr + `$`
	case "bindAddress":
		return `^(` + ipv4 + `|` + ipv6 + `)?$`
	case "healthzBindAddress", "metricsBindAddress":
		return `^` + addrPort + `?$`
	}
	return ""
}

func schemaOf(t reflect.Type, path string) map[string]any {
	switch t = base(t); t {
	case reflect.TypeFor[metav1.Duration]():
		return map[string]any{"type": "string", "pattern": "^" + period + "$"}
	case reflect.TypeFor[logsapi.TimeOrMetaDuration](), reflect.TypeFor[resource.QuantityValue]():
		return map[string]any{"type": []string{"string", "integer"}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int32, reflect.Uint32:
		return map[string]any{"type": "integer"}
	case reflect.Float32:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), path+"[]")}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), path+"{}")}
	case reflect.Struct:
		return structSchema(t, path)
	default: // a text
	}
	if pattern := patternOf(path); pattern != "" {
		return map[string]any{"type": "string", "pattern": pattern}
	}
	return map[string]any{"type": "string"}
}

func structSchema(t reflect.Type, path string) map[string]any {
	fields := map[string]any{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(fields, structSchema(f.Type, path)["properties"].(map[string]any))
			continue
		}
		fields[name] = schemaOf(f.Type, strings.TrimPrefix(path+"."+name, "."))
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": fields}
}

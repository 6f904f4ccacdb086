package files

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A kind that looks like one that is read is reported. Other kinds are ignored.
func TestMisspelledKinds(t *testing.T) {
	for _, tc := range []struct{ apiVersion, kind, meant string }{
		{"v1", "Servic", "Service of v1"},
		{"v1", "service", "Service of v1"},
		{"v1", "ServicesList", "Service of v1"},
		{"discovery.k8s.io/v1", "EndpointSlices", "EndpointSlice of discovery.k8s.io/v1"},
		{"networking.k8s.io/v1", "ServiceCDIR", "ServiceCIDR of networking.k8s.io/v1"},
		{"v1", "EndpointSlice", "EndpointSlice of discovery.k8s.io/v1"},
		{"networking.k8s.io/v1", "Service", "Service of v1"},
		{"v1", "Endpoint", "Endpoints of v1"},
		{"serving.knative.dev/v1", "Service", ""},
		{"serving.knative.dev/v1", "Servic", ""},
		{"metrics.k8s.io/v1beta1", "PodMetrics", ""},
		{"v1", "ConfigMap", ""},
		{"v1", "SecretList", ""},
	} {
		t.Run(tc.apiVersion+" "+tc.kind, func(t *testing.T) {
			c := parse(fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x}\n", tc.apiVersion, tc.kind))
			want := ""
			if tc.meant != "" {
				want = fmt.Sprintf("f: line 2: %s x: kind: %[1]s: the object is not read; did you mean %s?", tc.kind, tc.meant)
			}
			if got := strings.Join(problemsOf(c), "\n"); got != want || len(c.objects) > 0 || c.isBroken {
				t.Errorf("got  %q\nwant %q\nobjects %v, broken %v", got, want, c.objects, c.isBroken)
			}
		})
	}
}

// No kind of Kubernetes is reported.
func TestKindsOfKubernetes(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, networkingv1.AddToScheme(scheme))
	for _, group := range []schema.GroupVersion{corev1.SchemeGroupVersion, networkingv1.SchemeGroupVersion} {
		for kind, typ := range scheme.KnownTypes(group) {
			if _, isObject := typ.FieldByName("ObjectMeta"); !isObject {
				continue
			}
			if p := (header{APIVersion: group.String(), Kind: kind}).misspelled(); p != nil {
				t.Errorf("%s is reported", kind)
			}
		}
	}
}

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

// A kind that its group does not have is reported; others are ignored.
func TestMisspelledKinds(t *testing.T) {
	for _, tc := range []struct {
		apiVersion, kind string
		reported         bool
	}{
		{"v1", "Servic", true},
		{"v1", "service", true},
		{"v1", "Endpoint", true},
		{"v1", "ServicesList", true},
		{"discovery.k8s.io/v1", "EndpointSlices", true},
		{"networking.k8s.io/v1", "ServiceCDIR", true},
		{"v1", "EndpointSlice", true},
		{"networking.k8s.io/v1", "Service", true},
		{"serving.knative.dev/v1", "Service", false},
		{"serving.knative.dev/v1", "Servic", false},
		{"metrics.k8s.io/v1beta1", "PodMetrics", false},
		{"v1", "ConfigMap", false},
		{"v1", "SecretList", false},
	} {
		t.Run(tc.apiVersion+" "+tc.kind, func(t *testing.T) {
			c := parse(fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x}\n", tc.apiVersion, tc.kind))
			want := ""
			if tc.reported {
				want = fmt.Sprintf("f: line 2: %s x: kind: %[1]s: there is no such kind in %s, so the object is not read",
					tc.kind, tc.apiVersion)
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

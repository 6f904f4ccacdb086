package kube

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/internal/source/convert"
)

// unread selects the parts of a message in protobuf that no proxy reads. They are most of a usual object, and cost less
// to find than to decode. The numbers in within and keys are less than 16, so that their tags have one byte.
type unread struct {
	fields []protowire.Number            // these are not read
	within map[protowire.Number]*unread  // parts of these are not read
	keys   map[protowire.Number][]string // of these maps only these keys are read
}

// Numbers of fields: generated.proto of k8s.io/apimachinery/pkg/apis/meta/v1,
// k8s.io/api/core/v1 and k8s.io/api/discovery/v1.
func unreadService() *unread {
	return &unread{within: map[protowire.Number]*unread{
		fieldMetadata: unreadMeta(),
		2:             {fields: []protowire.Number{2}}, // spec: selector
		3:             {fields: []protowire.Number{2}}, // status: conditions
	}}
}

func unreadSlice() *unread {
	return &unread{within: map[protowire.Number]*unread{
		fieldMetadata: unreadMeta(),
		2:             {fields: []protowire.Number{3, 4, 5, 7}}, // endpoints: hostname, targetRef, deprecatedTopology, zone
	}}
}

func unreadMeta() *unread {
	return &unread{
		// generateName, selfLink, resourceVersion, generation, ownerReferences, finalizers, managedFields
		fields: []protowire.Number{2, 4, 6, 7, 13, 14, 17},
		keys: map[protowire.Number][]string{
			11: {convert.LabelProxyName, convert.LabelHeadless, discoveryv1.LabelServiceName},
			12: {
				corev1.EndpointsLastChangeTriggerTime, convert.AnnotationScheduler, convert.AnnotationWeights,
				convert.AnnotationClients, convert.AnnotationSlowStart, convert.AnnotationPreserve,
			},
		},
	}
}

// trim appends a message to to, without the fields that are not read.
func (u *unread) trim(to, message []byte) []byte {
	for number, field := range wireFields(message) {
		if slices.Contains(u.fields, number) {
			continue
		}
		value, n := protowire.ConsumeBytes(field[1:])
		if keys := u.keys[number]; keys != nil && n >= 0 && !slices.Contains(keys, string(keyOf(value))) {
			continue
		}
		of := u.within[number]
		if of == nil || n < 0 {
			to = append(to, field...)
			continue
		}
		at := len(to)
		to = of.trim(to, value)
		var head [2 * 10]byte
		tag := protowire.AppendTag(head[:0], number, protowire.BytesType)
		to = slices.Insert(to, at, protowire.AppendVarint(tag, uint64(len(to)-at))...)
	}
	return to
}

func keyOf(entry []byte) []byte {
	for len(entry) > 0 {
		number, _, n := protowire.ConsumeField(entry)
		if n < 0 {
			break
		}
		if key, m := protowire.ConsumeBytes(entry[1:n]); number == 1 && m >= 0 {
			return key
		}
		entry = entry[n:]
	}
	return nil
}

//go:build linux

package filled

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// entry is an object with the key under which the API server stores it.
type entry struct {
	key    string
	object runtime.Object
}

// entries returns the objects of Service i.
func entries(i int, slice runtime.Object) []entry {
	return []entry{
		{"/registry/ipaddresses/" + ClusterIP(i).String(), addressObject(i)},
		{"/registry/services/specs/" + Namespace + "/" + ServiceName(i), Service(i)},
		{"/registry/endpointslices/" + Namespace + "/" + SliceName(i, 0), slice},
	}
}

// put is a step of a transaction in the format of etcd's JSON gateway.
type put struct {
	RequestPut struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"requestPut"`
}

// transaction encodes objects as the API server stores them.
func transaction(list []entry) ([]byte, error) {
	var body struct {
		Success []put `json:"success"`
	}
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	for _, e := range list {
		var value bytes.Buffer
		if err := encoder.Encode(e.object, &value); err != nil {
			return nil, fmt.Errorf("encode %s: %w", e.key, err)
		}
		var p put
		p.RequestPut.Key, p.RequestPut.Value = []byte(e.key), value.Bytes()
		body.Success = append(body.Success, p)
	}
	return json.Marshal(body)
}

// perWrite is how many Services one transaction holds: etcd takes 128 steps.
const perWrite = 40

// fill writes the objects of n Services to the etcd at url, without the API
// server, which would take twenty times as long.
func fill(ctx context.Context, url string, n int, slice func(i int) runtime.Object) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for from := 0; from < n; from += perWrite {
		group.Go(func() error {
			var list []entry
			for i := from; i < min(from+perWrite, n); i++ {
				list = append(list, entries(i, slice(i))...)
			}
			return write(ctx, url, list)
		})
	}
	return group.Wait()
}

func write(ctx context.Context, url string, list []entry) error {
	body, err := transaction(list)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("write to etcd: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("write %d objects to etcd: %s: %s", len(list), response.Status, answer)
	}
	return err
}

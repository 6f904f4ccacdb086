package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// write writes the layout into a folder beside it first: there is a whole one or none.
func write(o options) error {
	if _, err := os.Lstat(o.out); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already: remove it first", o.out)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range o.programs {
		image, err := imageOf(o, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &p.platform}})
	}
	parent := filepath.Dir(o.out)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(parent, ".image-")
	if err != nil {
		return err
	}
	if _, err = layout.Write(part, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": o.version}},
	})); err == nil {
		err = errors.Join(os.Chmod(part, 0o755), os.Rename(part, o.out))
	}
	return errors.Join(err, os.RemoveAll(part))
}

// imageOf returns the image of a platform.
func imageOf(o options, p program) (v1.Image, error) {
	content, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	files, err := archive(content, o.created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "hack/image"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, configOf(o, p, image))
}

// configOf returns the configuration of the image, as in the Dockerfile.
func configOf(o options, p program, image v1.Image) *v1.ConfigFile {
	c, _ := image.ConfigFile() // it is in memory
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Variant, c.Created = p.platform.OS, p.platform.Architecture, p.platform.Variant, v1.Time{Time: o.created}
	c.Config = v1.Config{
		Entrypoint: []string{"sluice"},
		Env:        []string{"PATH=/usr/local/bin"},
		User:       "0:0", // container runtimes give nobody else the capability that it needs
		Labels: map[string]string{
			"org.opencontainers.image.title":       "Sluice",
			"org.opencontainers.image.description": "A Kubernetes service proxy, a drop-in for kube-proxy",
			"org.opencontainers.image.source":      "https://github.com/sluice-proxy/sluice",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     o.version,
		},
	}
	return c
}

// archive returns the files of the image: the program, also under the name of kube-proxy, and its folders.
func archive(content []byte, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	headers := []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "usr/local/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "usr/local/bin/", Mode: 0o755},
		{Typeflag: tar.TypeSymlink, Name: "usr/local/bin/kube-proxy", Linkname: "sluice", Mode: 0o777},
		{Typeflag: tar.TypeReg, Name: "usr/local/bin/sluice", Mode: 0o755, Size: int64(len(content))},
	}
	for _, h := range headers {
		h.ModTime, h.Format = at, tar.FormatUSTAR
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	_, err := w.Write(content) // of the last one
	return out.Bytes(), errors.Join(err, w.Close())
}

// Package image tests the Dockerfile without a container engine: it runs the
// instructions of the stages in a mount namespace, and the resulting images with chroot.
//
// In place of the base image of a stage it uses the file system of the test machine,
// which has the same version of Go. As with the Dockerfile, go downloads modules that are
// not in the cache. Tests of deployments get the files of the images that hack/image writes.
package image

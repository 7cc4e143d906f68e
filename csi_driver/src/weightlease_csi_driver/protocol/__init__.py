"""The two protocols of a kubelet's CSI plugin: the .proto files, and what protoc makes of them."""

"""Every fault that a data set can have: the one table of them."""
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of fault.

    Args:
        level (str): 'error' (it breaks or silently spoils training or its
            scores) or 'note'.
        message (str): What is wrong.
        cure (str): What to do about it.
    """
    level: str
    message: str
    cure: str


class Fault(NamedTuple):
    """A fault in one place.

    Args:
        code (str): Key of :data:`FAULTS`.
        level (str): 'error' or 'note'.
        file (str): The file, or the entry of a file.
        detail (str): What was found there.
    """
    code: str
    level: str
    file: str
    detail: str

    @property
    def kind(self) -> Kind:
        """Kind: Its message and cure."""
        return FAULTS[self.code]


_RECODE = ('tools/dataset/recode_masks.py writes such masks anew, for '
           'example with --map ')
_DROPPED = 'Correct it; training leaves the object out without a word'

FAULTS = {
    # ---- the config --------------------------------------------------------
    'config':
    Kind('error', 'the config or the data set class refuses this data',
         'Do what the message says'),
    'classes-text':
    Kind('error', 'classes is a text, so each letter becomes a class',
         "Write a tuple: classes = ('thing', ); the comma matters"),
    'classes-few':
    Kind('error', 'semantic segmentation needs two classes at least',
         "Name what is no object a class too, e.g. 'background'"),
    'classes-heads':
    Kind('error', 'a head of the model has another number of classes',
         'Set num_classes of each head to the number of classes'),
    'folder-missing':
    Kind('error', 'there is no such file or folder',
         'Correct data_root and the paths below it in the config; they are '
         'relative to the folder that the tools are started in'),
    # ---- images ------------------------------------------------------------
    'no-images':
    Kind('error', 'no image found',
         'Correct the folder or the suffix of the images in the config'),
    'image-suffix':
    Kind('error', 'images with another suffix than that of the config are '
         'left out',
         'Rename them or convert them; one suffix (capitals count) for all'),
    'image-missing':
    Kind('error', 'there is no image for this annotation',
         'Add the image, or remove the annotation; file names are relative '
         'to the folder of the images'),
    'image-unlisted':
    Kind('note', 'images without an entry in the annotations are left out',
         'Add entries for them if they belong to this split'),
    'image-unreadable':
    Kind('error', 'the image cannot be read, or is cut short',
         'Copy it anew, or remove it'),
    'image-exif-size':
    Kind('error', 'the camera was turned: training turns the image upright '
         'by its EXIF tag, and the annotations do not match that',
         'Save the images upright without the tag, or annotate the upright '
         'ones'),
    'image-exif':
    Kind('note', 'training turns or mirrors the image by its EXIF tag',
         'See in the contact sheet whether the annotations were made on the '
         'upright image'),
    'image-dark':
    Kind('error', 'an image of 16 bits loses its low byte, and little is '
         'left of this one', 'Stretch its values and save it with 8 bits'),
    'image-16bit':
    Kind('note', 'an image of 16 bits loses its low byte',
         'Nothing, where 256 levels suffice'),
    'image-grey':
    Kind('note', 'grey images: the three channels will be equal',
         'Nothing: checkpoints of colour images start well on grey ones too'),
    'image-alpha':
    Kind('note', 'images with transparency: it is dropped',
         'See that what the transparent pixels hide is no surprise'),
    'image-twice':
    Kind('note', 'the same image more than once in a split',
         'Remove the copies, unless they are meant to count double'),
    'leak':
    Kind('error', 'the same image in training and in validation: scores come '
         'out too high', 'Remove it from one of them; '
         'tools/dataset/split.py keeps copies together'),
    'path-non-ascii':
    Kind('note', 'the path has characters beyond ASCII',
         'Works here; rename it if another system garbles it'),
    # ---- masks of semantic segmentation ------------------------------------
    'mask-missing':
    Kind('error', 'an image has no mask: training stops when it comes up',
         'Add the mask or remove the image; names must be equal but for the '
         'suffix'),
    'mask-alone':
    Kind('error', 'a mask has no image and is left out',
         'Add the image or remove the mask; names must be equal but for the '
         'suffix'),
    'mask-unreadable':
    Kind('error', 'the mask cannot be read, or is cut short',
         'Write it anew'),
    'mask-size':
    Kind('error', 'mask and image differ in size',
         'Write the mask in the size of its image, without interpolation'),
    'mask-colours':
    Kind('error', 'the mask holds colours where numbers of classes belong',
         _RECODE + '0,0,0=0 128,0,0=1'),
    'mask-16bit':
    Kind('error', 'a mask value above 255 wraps around',
         _RECODE + '0=0 256=1'),
    'mask-0-255':
    Kind('error', 'all masks hold 0 and 255 alone, and 255 means not judged: '
         'no object would be learnt', _RECODE + '0=0 255=1'),
    'mask-values':
    Kind('error', 'mask values that are no class',
         'Name the missing classes, or list the values in void = (...) of '
         'the config; ' + _RECODE + '0=0 255=1'),
    'mask-zero':
    Kind('error', 'pixels of 0 are not judged by the config, and the last '
         'class has no pixel: the classes seem to count from 0',
         'Take 0 out of void, or set reduce_zero_label=False'),
    'mask-void':
    Kind('note', 'no pixel of the mask is judged', 'Remove the image, or '
         'label it'),
    'class-unused':
    Kind('note', 'a class does not occur in the split',
         'It cannot be learnt or scored here: check its name and number'),
    # ---- COCO files --------------------------------------------------------
    'json':
    Kind('error', 'this is no COCO file of objects',
         'It is a JSON object with the lists images, annotations and '
         'categories; for VOC XML see tools/dataset/voc2coco.py'),
    'category-missing':
    Kind('error', 'a class of the config is no category of the file',
         'Write the names as in the file, capitals and blanks included'),
    'category-order':
    Kind('error', 'classes stand in another order than the categories and '
         'get wrong names', 'Write the classes in the order of the file'),
    'category-left-out':
    Kind('note', 'categories that the config does not name are left out',
         'Add them to classes if they are to be learnt'),
    'category-twice':
    Kind('error', 'a category id or name occurs more than once',
         'Give each its own id and name'),
    'image-id-twice':
    Kind('error', 'an image id occurs more than once: one image hides the '
         'other', 'Number the images anew'),
    'file-name-twice':
    Kind('error', 'one file has several image entries, each without the '
         'objects of the others', 'Merge the entries'),
    'annotation-id-twice':
    Kind('error', 'an annotation id occurs more than once',
         'Number the annotations anew'),
    'annotation-id-0':
    Kind('error', 'the annotation id 0: COCO scoring counts a match with it '
         'as a miss', 'Number the annotations from 1'),
    'id-0':
    Kind('note', 'the id 0 of an image or category',
         'Nothing here; some other tools expect ids from 1'),
    'annotation-image':
    Kind('error', 'an annotation of an image that is not listed',
         'Correct its image_id, or list the image'),
    'annotation-category':
    Kind('error', 'an annotation of a category that is not listed',
         'Correct its category_id, or list the category'),
    'key-missing':
    Kind('error', 'a value that training or scoring reads is missing',
         'Add it'),
    'value':
    Kind('error', 'a value of another kind than training reads',
         'width, height and area are numbers above 0, file_name is a text'),
    'image-size':
    Kind('error', 'the file has another size than its entry',
         'Correct width and height in the entry; if the image was resized, '
         'its boxes and masks must be as well'),
    'box-malformed':
    Kind('error', 'the box is not four finite numbers',
         'Write bbox as [x, y, width, height]'),
    'box-degenerate':
    Kind('error', 'the box is less than a pixel wide or high, or has no area',
         _DROPPED),
    'box-outside':
    Kind('error', 'the box leaves the image',
         'Correct it; bbox is [x, y, width, height], not two corners'),
    'mask-absent':
    Kind('error', 'the object has no mask, and training stops there',
         'Add the segmentation, or set masks = False in the config'),
    'polygon':
    Kind('error', 'a polygon of fewer than three points, of an odd number of '
         'values, or not in a list', 'Write segmentation as '
         '[[x1, y1, x2, y2, x3, y3, ...]]; training passes over others'),
    'rle-size':
    Kind('error', 'the size of the run-length mask is not that of the image',
         'Write size as [height, width] of the image'),
    'rle':
    Kind('error', 'the run-length mask cannot be decoded',
         'Encode it anew with pycocotools'),
    'mask-empty':
    Kind('error', 'the mask covers no pixel', 'Correct or remove the object'),
    'mask-box':
    Kind('error', 'mask and box of an object lie in different places',
         'See the contact sheet; x and y may be exchanged, or the box '
         'written as two corners'),
    'crowd':
    Kind('note', 'crowd regions: neither trained on nor counted as missed',
         'Nothing, if they are meant so'),
    'ignored':
    Kind('note', 'objects marked "ignore" are left out',
         'Nothing, if they are meant so'),
    'image-empty':
    Kind('note', 'images without objects',
         'Nothing: whether they are trained on says filter_empty_gt of the '
         'config'),
    'no-objects':
    Kind('error', 'no object of the classes is left to train on or score',
         'See the other faults'),
}
"""What can be wrong, by code."""
